"""Student's t against tabulated quantiles."""

import pytest

from advisor.tuning.measure.student_t import t_quantile, upper_tail


@pytest.mark.parametrize(
    ("probability", "freedom", "tabulated"),
    [
        (0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 3, 3.182), (0.975, 5, 2.571), (0.975, 10, 2.228),
        (0.975, 30, 2.042), (0.975, 120, 1.980), (0.95, 2, 2.920), (0.95, 4, 2.132), (0.995, 3, 5.841),
        (0.995, 15, 2.947), (0.9995, 7, 5.408), (0.75, 1, 1.000),
    ],
)  # fmt: skip
def test_quantiles_agree_with_the_table(probability: float, freedom: int, tabulated: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(tabulated, abs=6e-4)


@pytest.mark.parametrize("freedom", [1, 3, 11, 200])
def test_quantile_and_tail_are_inverse(freedom: int) -> None:
    for probability in (0.5001, 0.9, 0.9955, 0.99999):
        assert upper_tail(t_quantile(probability, freedom), freedom) == pytest.approx(
            1 - probability, rel=1e-6
        )


def test_the_median_is_zero() -> None:
    assert t_quantile(0.5, 4) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("probability", "freedom"), [(0.4, 3), (1.0, 3), (0.9, 0)])
def test_impossible_quantiles_are_refused(probability: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="no t quantile"):
        t_quantile(probability, freedom)
