"""A node's watts by its management controller's Redfish service: HTTPS, with its certificate checked.

``Chassis/<id>/Power`` has ``PowerConsumedWatts``; newer services have ``EnvironmentMetrics`` with
``PowerWatts``. One connection is kept open. Redirections are not followed, since credentials would go with
them, and no proxy is used.
"""

import base64
import http.client
import json
import math
import re
import socket
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from joulecast.power.background import BackgroundMeter
from joulecast.power.credentials import Credentials, credentials_in
from joulecast.power.kernel_files import MOST_NODE_W
from joulecast.power.meters import Meter, MeteredNodes, MeterUnavailable, ReadFailed, Reading

if TYPE_CHECKING:
    from joulecast.platforms.controller import Redfish

_ROOT = "/redfish/v1/Chassis"
_MOST_BYTES = 1_000_000
_MOST_CHASSIS = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_KEY = "key `redfish` of the platform's file"


class NoSuchPage(ReadFailed):
    """The service does not have what was asked for."""


def _wrong(path: str, expected: str) -> NoReturn:
    raise ReadFailed(f"{path}: expected {expected}")


def _number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        _wrong(path, "a number of watts")
    if not 0 < value <= MOST_NODE_W:
        raise ReadFailed(f"{path}: {value:g} W, which no node draws")
    return float(value)


class Service:
    """One controller's service.

    Raises:
        MeterUnavailable: its certificate's file cannot be read.
    """

    def __init__(self, address: str, settings: "Redfish", credentials: Credentials | None) -> None:
        self.address, self._timeout_s = address, settings.timeout_s
        self._headers = {"Accept": "application/json", "OData-Version": "4.0"}
        if credentials is not None and credentials.token is not None:
            self._headers["X-Auth-Token"] = credentials.token
        elif credentials is not None:
            both = f"{credentials.user}:{credentials.password}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(both).decode()}"
        file = settings.certificate
        try:
            trusted = None if file is None else str(Path(file).expanduser())
            self._context = ssl.create_default_context(cafile=trusted)
        except OSError as error:  # ssl.SSLError is one
            reason = error.strerror or "it holds no certificate"
            raise MeterUnavailable(
                f"redfish: certificate {file}: {reason}", f"give a PEM file in the {_KEY}"
            ) from None
        self._connection: http.client.HTTPSConnection | None = None

    @property
    def is_closed(self) -> bool:
        """Whether the last question found no service that answers."""
        return self._connection is None

    def close(self) -> None:
        """End the connection; the next question opens another one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def get(self, path: str) -> dict[str, Any]:
        """The object at a path of the service.

        Raises:
            ReadFailed: no answer in time, a wrong certificate, refused, or no JSON object.
        """
        try:
            status, body = self._answer(path)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise ReadFailed(
                f"{self.address}: its certificate is not trusted ({error.verify_message})"
            ) from None
        except TimeoutError:
            self.close()
            raise ReadFailed(
                f"{self.address}: did not answer within {self._timeout_s:g} s"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise ReadFailed(f"{self.address}: {reason}") from None
        if status in (401, 403):
            raise ReadFailed(f"{self.address}{path}: refused ({status}): the credentials do not do")
        if status == 404:
            raise NoSuchPage(f"{self.address}{path}: there is none (404)")
        if status != 200:
            raise ReadFailed(f"{self.address}{path}: answered with status {status}")
        if len(body) > _MOST_BYTES:
            _wrong(f"{self.address}{path}", f"at most {_MOST_BYTES:,} bytes")
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            _wrong(f"{self.address}{path}", "JSON")
        if not isinstance(content, dict):
            _wrong(f"{self.address}{path}", "a JSON object")
        return content

    def _body(self, answer: http.client.HTTPResponse) -> bytes:
        """The body, or the beginning of one that is too long; in the time that a whole answer may take."""
        until_s, body = time.monotonic() + self._timeout_s, b""
        while len(body) <= _MOST_BYTES and (piece := answer.read1(65_536)):
            body += piece
            if time.monotonic() > until_s:
                raise TimeoutError
        return body

    def _answer(self, path: str) -> tuple[int, bytes]:
        """Status and body; a connection that the service closed meanwhile is opened once more."""
        for is_last in (False, True):
            fresh = self._connection is None
            if self._connection is None:
                parts = urlsplit(self.address)
                self._connection = http.client.HTTPSConnection(
                    str(parts.hostname), parts.port, timeout=self._timeout_s, context=self._context
                )
            try:
                self._connection.request("GET", path, headers=self._headers)
                answer = self._connection.getresponse()
                return answer.status, self._body(answer)
            except (ConnectionError, http.client.HTTPException):
                self.close()
                if fresh or is_last:
                    raise
        raise AssertionError


def _watts_of_power(service: Service, chassis: str) -> float:
    path = f"{_ROOT}/{chassis}/Power"
    controls = service.get(path).get("PowerControl")
    # The first is the chassis; those of its parts come after it.
    if not isinstance(controls, list) or not controls or not isinstance(controls[0], dict):
        _wrong(path, "PowerControl")
    return _number(controls[0].get("PowerConsumedWatts"), f"{path}: PowerConsumedWatts")


def _watts_of_environment(service: Service, chassis: str) -> float:
    path = f"{_ROOT}/{chassis}/EnvironmentMetrics"
    watts = service.get(path).get("PowerWatts")
    if not isinstance(watts, dict):
        _wrong(path, "PowerWatts")
    return _number(watts.get("Reading"), f"{path}: PowerWatts")


_WAYS = (_watts_of_power, _watts_of_environment)


def _names(service: Service) -> list[str]:
    """Names of the service's chassis."""
    members = service.get(_ROOT).get("Members")
    paths = [m.get("@odata.id") for m in members or () if isinstance(m, dict)]
    names = [str(path).rstrip("/").rpartition("/")[2] for path in paths if path]
    if not names:
        _wrong(f"{service.address}{_ROOT}", "a list of chassis")
    return [name for name in names[:_MOST_CHASSIS] if _NAME.fullmatch(name)]


class _Source:
    """Where a service has the node's watts."""

    def __init__(self, service: Service, chassis: str | None) -> None:
        self._service = service
        found, failed = [], []
        for name in [chassis] if chassis is not None else _names(service):
            for way in _WAYS:
                try:
                    way(service, name)
                except NoSuchPage as error:
                    failed.append(str(error))
                except ReadFailed as error:
                    if service.is_closed:
                        raise  # it does not answer at all
                    failed.append(str(error))
                else:
                    found.append((name, way))
                    break
        if len(found) > 1:
            names = ", ".join(name for name, _ in found)
            raise ReadFailed(
                f"{service.address}: several chassis know their watts ({names}); name the node's in `chassis`"
            )
        if not found:
            refused = next((text for text in failed if "refused" in text), None)
            raise ReadFailed(refused or (failed[-1] if failed else "it has no chassis"))
        self.chassis, self._way = found[0]

    def ask(self) -> Reading:
        """The node's watts now."""
        return Reading(self._way(self._service, self.chassis), None)


def open_meters(nodes: MeteredNodes) -> list[Meter]:
    """This node's watts as its controller's service gives them.

    Raises:
        MeterUnavailable: no address is given, the credentials are no good, or the service gives no watts.
    """
    settings = nodes.redfish
    if settings is None:
        raise MeterUnavailable(
            "redfish: the platform's file names no controller",
            f"give address and credentials in the {_KEY} (docs/how-to/meters.md)",
            elsewhere=True,
        )
    address = settings.address_here()
    if address is None:
        host = socket.gethostname().partition(".")[0]
        raise MeterUnavailable(
            f"redfish: no address for {host}",
            f"add it to `addresses` in the {_KEY}, or give `address`",
        )
    credentials = None
    if settings.credentials is not None:
        credentials = credentials_in(settings.credentials, "redfish")
    service = Service(address, settings, credentials)
    try:
        source = _Source(service, settings.chassis)
        meter = BackgroundMeter(
            "redfish",
            nodes.host_node,
            source.ask,
            every_s=settings.interval_s,
            counter=False,
            identity=f"redfish:{address}:{source.chassis}",
        )
    except ReadFailed as error:
        service.close()
        raise MeterUnavailable(f"redfish: {error}", f"check the {_KEY}") from None
    return [meter]
