"""An operator's views of the pipelines, and the actions on them, without a command line.

    port.py        the interface between operators and pipelines; each pipeline implements it once
    pipelines.py   `Operations`: the pipelines of one bucket, their ledgers, the day's book
    own_pipeline.py   the base class of pipelines of your own;   loader.py   loads those named in the setting PIPELINES
    guarded_pipeline.py, foreign_calls.py   report a bug in such a pipeline without affecting the others

Views, each with its JSON document:
    status.py   runs.py, run_pages.py   report.py (history, incident report)   spend.py   letters.py   breakers.py
    alerts.py   modes.py   kpi.py (the figures of retake.kpi)   last_errors.py   reports.py (daily, weekly)
    host_checks.py, store_checks.py, vendor_checks.py (the doctor's findings)

Actions: orders.py (retry, skip, cancel, rollback, requeue), letters.py (drop), unlocking.py, breakers.py (probe,
reset), alerts.py (acknowledge, close, test, deliver), modes.py (set, auto), spend.py (the latest day).

    operations = open_operations(settings, clock)            # retake.story.operations
    meant = target(operations, "20260101-0930")
    plan = plan_order(meant, Verb.CANCEL)                     # plan.lost: ask before going on
    carry_out(operations, meant, plan)
"""
