"""A Lightning script that starts the advisor with a callback."""

import fleet_advisor
import lightning
import lightning_script


class Advisor(lightning.Callback):
    def setup(self, trainer, module, stage):
        fleet_advisor.start()


class Stopwatch(lightning_script.Stopwatch, Advisor):
    """The imported script's callback, which is thereby the advisor's as well."""


lightning_script.Stopwatch = Stopwatch
lightning_script.main()
