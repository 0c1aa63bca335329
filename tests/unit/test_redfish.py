"""Redfish on a real HTTPS server of this machine, with a certificate that is made for the test."""

import base64
import json
import shutil
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from joulecast.errors import JoulecastError
from joulecast.platforms import read_platform
from joulecast.platforms.controller import Redfish
from joulecast.power import redfish
from joulecast.power.background import BackgroundMeter
from joulecast.power.meters import About, MeteredNodes, MeterUnavailable, ReadFailed
from joulecast.records.meter_settings import MeterSettings

pytestmark = [
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl"),
    pytest.mark.usefixtures("slow_meters_end"),
]

ROOT = "/redfish/v1/Chassis"
SECRET = "s3cret-Token"


def certificate(folder: Path, name: str, alternative: str) -> Path:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", f"subjectAltName={alternative}", "-keyout", f"{folder / name}.key"]
    subprocess.run([*command, "-out", f"{folder / name}.pem"], check=True, capture_output=True)
    return folder / f"{name}.pem"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    return {
        "bmc": certificate(folder, "bmc", "IP:127.0.0.1"),
        "other": certificate(folder, "other", "DNS:elsewhere.example"),
    }


class Bmc(ThreadingHTTPServer):
    """A controller: what it answers at each path, and what it was asked."""

    daemon_threads = True

    def __init__(self, certificate: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )
        self.pages: dict[str, object] = {}
        self.headers: list[dict[str, str]] = []
        self.hang = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, request, client_address):
        pass

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.server_address[1]}"

    def chassis(self, **powers) -> None:
        members = [{"@odata.id": f"{ROOT}/{name}"} for name in powers]
        self.pages[ROOT] = {"Members": members}
        for name, watts in powers.items():
            control = [{"PowerConsumedWatts": watts}, {"PowerConsumedWatts": 50}]
            if watts is not None:
                self.pages[f"{ROOT}/{name}/Power"] = {"PowerControl": control}


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def do_GET(self):
        self.server.headers.append(dict(self.headers))
        page = self.server.pages.get(self.path, 404)
        if page == "hang":
            self.server.hang.wait(30)
        status = page if isinstance(page, int) else 200
        body = page.encode() if isinstance(page, str) else json.dumps(page).encode()
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "https://example.org/")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def bmc(certificates):
    server = Bmc(certificates["bmc"])
    yield server
    server.hang.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def token(tmp_path):
    file = tmp_path / "token"
    file.write_text(f"# of the node's BMC\ntoken: {SECRET}\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def opens(bmc, certificates, token):
    def opens(**more) -> list[BackgroundMeter]:
        settings = {"address": bmc.address, "certificate": str(certificates["bmc"])}
        settings |= {"credentials": str(token), "timeout_s": 30.0, "interval_s": 0.2} | more
        metering = MeterSettings(redfish=Redfish(**settings))
        return redfish.open_meters(MeteredNodes("host", settings=metering))

    return opens


def test_a_nodes_watts_come_over_https_with_a_token(bmc, opens):
    bmc.chassis(Self=731.5, Shelf=None)
    (meter,) = opens()
    assert meter.read().watts == 731.5 and About.of(meter).covers == "node"
    assert meter.identity == f"redfish:{bmc.address}:Self"
    assert {headers["X-Auth-Token"] for headers in bmc.headers} == {SECRET}


def test_newer_services_have_environment_metrics_and_users_passwords(bmc, opens, token):
    bmc.pages[f"{ROOT}/System.1/EnvironmentMetrics"] = {"PowerWatts": {"Reading": 412}}
    token.write_text(f"user: reader\npassword: {SECRET}: with a colon\n")
    (meter,) = opens(chassis="System.1")
    assert meter.read().watts == 412
    sent = bmc.headers[0]["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent).decode() == f"reader:{SECRET}: with a colon"


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (401, "refused"),
        (403, "refused"),
        (302, "status 302"),
        (500, "status 500"),
        (404, "there is none"),
        ("{not json", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ("x" * 1_100_000, "at most"),
        ([1], "expected a JSON object"),
        ({"PowerControl": []}, "expected PowerControl"),
        ({"PowerControl": [{"PowerConsumedWatts": None}]}, "number of watts"),
        ({"PowerControl": [{"PowerConsumedWatts": 0}]}, "no node draws"),
        ({"PowerControl": [{"PowerConsumedWatts": 1e9}]}, "no node draws"),
        ("hang", "did not answer within"),
    ],
)
def test_a_service_that_gives_no_watts_says_why_and_shows_no_secret(bmc, opens, page, said):
    bmc.pages[f"{ROOT}/1/Power"] = bmc.pages[f"{ROOT}/1/EnvironmentMetrics"] = page
    if isinstance(page, dict):
        bmc.pages.pop(f"{ROOT}/1/EnvironmentMetrics")
    with pytest.raises(MeterUnavailable) as missing:
        opens(chassis="1", timeout_s=0.5 if page == "hang" else 30.0)
    if isinstance(page, dict):
        assert "there is none" in str(missing.value) or said in str(missing.value)
    else:
        assert said in str(missing.value)
    assert SECRET not in str(missing.value) and not missing.value.elsewhere


def test_a_wrong_certificate_is_refused_before_the_token_is_sent(bmc, opens, certificates):
    bmc.chassis(Self=100)
    for wrong in ({"certificate": str(certificates["other"])}, {"certificate": None}):
        with pytest.raises(MeterUnavailable, match="certificate is not trusted"):
            opens(**wrong)
    with pytest.raises(MeterUnavailable, match="certificate is not trusted"):
        opens(address=bmc.address.replace("127.0.0.1", "localhost"))
    assert bmc.headers == []
    with pytest.raises(MeterUnavailable, match="No such file"):
        opens(certificate="/nowhere.pem")


def test_a_service_that_fails_in_mid_run_costs_readings_and_comes_back(bmc, opens):
    bmc.chassis(Self=100)
    (meter,) = opens(timeout_s=1.5)
    ask = meter._ask
    assert ask().watts == 100
    for page in (401, "{", "hang"):
        bmc.pages[f"{ROOT}/Self/Power"] = page
        with pytest.raises(ReadFailed) as failed:
            ask()
        assert SECRET not in str(failed.value)
    bmc.chassis(Self=120)
    assert ask().watts == 120


def test_several_chassis_have_to_be_told_apart(bmc, opens):
    bmc.chassis(Left=100, Right=200)
    with pytest.raises(MeterUnavailable, match=r"\(Left, Right\); name the node's in `chassis`"):
        opens()
    (meter,) = opens(chassis="Right")
    assert meter.read().watts == 200


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (f"token: {SECRET}", 0o644, "may be read by others"),
        (f"token: {SECRET}", 0o640, "may be read by others"),
        ("", 0o600, "no complete credentials"),
        (f"password: {SECRET}", 0o600, "no complete credentials"),
        (f"{SECRET}", 0o600, ":1: is no credential"),
        (f"token: {SECRET}\x07", 0o600, "characters that no header"),
        ("token:", 0o600, "is empty"),
    ],
)
def test_credentials_are_believed_only_from_a_file_of_their_owner(
    opens, bmc, token, content, mode, said
):
    bmc.chassis(Self=100)
    token.write_text(content)
    token.chmod(mode)
    with pytest.raises(MeterUnavailable, match=said) as missing:
        opens()
    assert SECRET not in str(missing.value) and bmc.headers == []


def test_each_node_has_its_address_and_addresses_hold_no_secrets(opens, tmp_path, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "node07.cluster")
    assert Redfish(address="https://{node}-bmc:8443").address_here() == "https://node07-bmc:8443"
    own = Redfish(addresses={"node07": "https://10.0.0.7"})
    assert own.address_here() == "https://10.0.0.7"
    with pytest.raises(MeterUnavailable, match="no address for node07"):
        opens(address=None, addresses={"node08": "https://10.0.0.8"})
    file = tmp_path / "mine.yaml"
    for address in ("http://bmc", f"https://root:{SECRET}@bmc", "https://bmc/redfish", "bmc"):
        file.write_text(f"name: mine\nredfish: {{address: '{address}'}}\n")
        with pytest.raises(JoulecastError, match="redfish") as wrong:
            read_platform(file)
        assert SECRET not in str(wrong.value)
