"""What runs inside the user's training processes: it observes steps, switches strategies between them and times blocks.

Standard library and torch only; loaded by `launch.py` under the private name `fleet_advisor_runtime`, so inside this
package every import is relative.
"""
