"""A report is made again when, and only when, something it is made from has changed."""

from repro.report import stamp


def test_current_until_a_result_changes(tmp_path):
    results, plots = tmp_path / "results", tmp_path / "plots"
    (results / "wandb").mkdir(parents=True)
    plots.mkdir()
    (results / "a.json").write_text("{}")
    assert not stamp.is_current(results, plots), "no report yet"
    (plots / "report.html").write_text("page")
    stamp.put(results, plots)
    assert stamp.is_current(results, plots)
    (results / "wandb" / "run").write_text("not a result")
    assert stamp.is_current(results, plots)
    (results / "a.json").write_text('{"more": 1}')
    assert not stamp.is_current(results, plots)
    stamp.put(results, plots)
    assert not stamp.is_current(tmp_path / "other", plots)
    (plots / "report.html").unlink()
    assert not stamp.is_current(results, plots)
