"""From a block's figures to statistics: steady states, intervals, phases, stragglers, utilisation."""
