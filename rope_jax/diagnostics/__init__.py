"""What a schedule does to a model, in numbers a person can read: float64 on the host, nothing traced.

    plain, scaled = geometric_schedule(64, theta=5e5), spec.schedule()
    turns(scaled, 8192), stretch(scaled, plain), effective_length(scaled, plain, 8192)

Everywhere `plain` is what the model was trained with before it was stretched, and `trained_length` the tokens it then
saw. A pair that made a whole turn within them has shown every phase; one that did not has shown only the start of its
circle, and what lies beyond is new to the model.
"""

from rope_jax.diagnostics.phases import effective_length as effective_length
from rope_jax.diagnostics.phases import unseen_phase as unseen_phase
from rope_jax.diagnostics.scores import base_bound as base_bound
from rope_jax.diagnostics.scores import mean_score as mean_score
from rope_jax.diagnostics.scores import similarity_length as similarity_length
from rope_jax.diagnostics.stretching import VERDICTS as VERDICTS
from rope_jax.diagnostics.stretching import stretch as stretch
from rope_jax.diagnostics.stretching import verdicts as verdicts
from rope_jax.diagnostics.waves import critical_dimension as critical_dimension
from rope_jax.diagnostics.waves import pair_of_turns as pair_of_turns
from rope_jax.diagnostics.waves import turns as turns
from rope_jax.diagnostics.waves import wavelengths as wavelengths
