"""Optimizers that train at one point and have learnt another are evaluated at the second."""

import pytest
import torch

from critgrad.lab.train.bases import learnt


class TwoPoints(torch.optim.SGD):
    def eval(self):
        self.param_groups[0]["params"][0].data += 1

    def train(self):
        self.param_groups[0]["params"][0].data -= 1


def test_an_evaluation_sees_what_was_learnt_and_training_goes_on_where_it_was():
    weight = torch.nn.Parameter(torch.zeros(2))
    with learnt(TwoPoints([weight], lr=0.1)):
        assert weight.tolist() == [1, 1]
    assert weight.tolist() == [0, 0]
    with pytest.raises(KeyError), learnt(TwoPoints([weight], lr=0.1)):
        raise KeyError
    assert weight.tolist() == [0, 0]


def test_other_optimizers_are_left_alone():
    weight = torch.nn.Parameter(torch.zeros(2))
    with learnt(torch.optim.SGD([weight], lr=0.1)):
        assert weight.tolist() == [0, 0]
