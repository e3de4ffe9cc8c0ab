"""What a run leaves on the disk: folder, checkpoints, metrics, report.

`folder` knows every file name; `checkpoint` and `report` write what lies there, `metrics` says what is measured,
`writers` show and store it, and `recorder` is the guest at the learner's door that calls them. Nothing here is
imported by the two loops.
"""

from zmqrl.runs.folder import RunFolder

__all__ = ["RunFolder"]
