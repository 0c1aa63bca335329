"""What `joulecast measure` says of a record."""

from conftest import make_record, make_spec

from joulecast.measure.observer.observation import Result
from joulecast.report.measured_training import result_lines


def test_one_sample_is_one_and_a_captured_network_of_a_shipped_name_is_known_by_its_file(tmp_path):
    workload, training = {"network": "resnet50"}, {"global_batch_size": 1}
    record = make_record(make_spec("resnet50-n1-r1", workload=workload, training=training))
    (tmp_path / "network.json").touch()
    said = "\n".join(result_lines(Result(tmp_path, record)))
    assert "3 steps of 1.00 s (1 sample), 1 rank" in said
    assert f"know it by {tmp_path}/network.json" in said
