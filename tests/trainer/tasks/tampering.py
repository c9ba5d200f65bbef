"""A task whose hook changes learning rates at every step, by the route in `task_options`; `none` does not."""

from __future__ import annotations

import copy
import pickle
import warnings

import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.optim.optimizer import _global_optimizer_pre_hooks

OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.1),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.1, amsgrad=True),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.1, momentum=0.5, centered=True),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.1),
    "rprop": lambda groups: torch.optim.Rprop(groups, lr=0.1),
}


def item(optimizer, model):
    optimizer.param_groups[0]["lr"] = 1.0  # the line of `item`


def update(optimizer, model):
    optimizer.param_groups[1].update(lr=1.0)


def merge(optimizer, model):
    optimizer.param_groups[0] |= {"lr": 1.0}


def dict_setitem(optimizer, model):
    dict.__setitem__(optimizer.param_groups[0], "lr", 1.0)


def last_bit(optimizer, model):
    group = optimizer.param_groups[0]
    group["lr"] = torch.nextafter(torch.tensor(group["lr"], dtype=torch.float64), torch.tensor(1.0)).item()


def replace_group(optimizer, model):
    optimizer.param_groups[0] = {**optimizer.param_groups[0], "lr": 1.0}


def replace_list(optimizer, model):
    optimizer.param_groups = [{**group, "lr": 1.0} for group in optimizer.param_groups]


def drop_group(optimizer, model):
    del optimizer.param_groups[1]


def exchange_parameters(optimizer, model):
    first, second = optimizer.param_groups
    first["params"], second["params"] = second["params"], first["params"]


def tensor_rate(optimizer, model):
    optimizer.param_groups[0]["lr"] = torch.tensor(1.0)


def load_state_dict(optimizer, model):
    state = optimizer.state_dict()
    state["param_groups"] = [{**group, "lr": 1.0} for group in state["param_groups"]]
    optimizer.load_state_dict(state)


def scheduler(optimizer, model):
    made = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of a scheduler before the optimizer
        made.step()


def add_group(optimizer, model):
    class Another(torch.nn.Parameter):
        pass

    optimizer.add_param_group({"params": [Another(torch.ones(2, requires_grad=True))], "lr": 1.0})


def defaults(optimizer, model):
    optimizer.defaults["lr"] = 1.0


def second_optimizer(optimizer, model):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=1.0).step()


def second_rprop(optimizer, model):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.Rprop(model.parameters(), lr=0.0).step()


def shallow_copy(optimizer, model):
    other = copy.copy(optimizer)
    other.param_groups = [{**group, "lr": 1.0} for group in other.param_groups]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    other.step()


def deep_copy(optimizer, model):
    other = copy.deepcopy(optimizer)
    other.param_groups[0]["lr"] = 1.0
    other.step()


def through_pickle(optimizer, model):
    other = pickle.loads(pickle.dumps(optimizer))
    other.param_groups[0]["lr"] = 1.0
    other.step()


def later_hook(optimizer, model):
    if not hasattr(optimizer, "hooked"):
        optimizer.hooked = optimizer.register_step_pre_hook(lambda o, a, k: item(o, None))


def no_groups(optimizer, model):
    optimizer.param_groups = None


def no_group_any_more(optimizer, model):
    optimizer.param_groups[1] = "lr"


def spent_parameters(optimizer, model):
    optimizer.param_groups[0]["params"] = iter(())


def shared_dict(optimizer, model):
    other = torch.optim.SGD(model.parameters(), lr=1.0)
    groups = other.param_groups
    other.__dict__.update(optimizer.__dict__)
    other.__dict__.pop("step", None)  # a scheduler's, which would step the optimizer itself
    other.param_groups = groups
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    other.step()


ROUTES = {
    route.__name__: route
    for route in (
        item,
        update,
        merge,
        dict_setitem,
        last_bit,
        replace_group,
        replace_list,
        drop_group,
        exchange_parameters,
        tensor_rate,
        load_state_dict,
        scheduler,
        add_group,
        defaults,
        second_optimizer,
        second_rprop,
        shallow_copy,
        deep_copy,
        through_pickle,
        no_groups,
        no_group_any_more,
        spent_parameters,
        shared_dict,
        later_hook,
    )
}


# Out of reach of any hook: what the audit is for.


def wrapped_step(optimizer, model):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    type(optimizer).step.__wrapped__(optimizer)


def through_data(optimizer, model):
    for parameter in model.parameters():
        parameter.data.mul_(1.001)


def cleared_hooks(optimizer, model):
    _global_optimizer_pre_hooks.clear()
    optimizer._optimizer_step_pre_hooks.clear()
    optimizer.param_groups[0]["lr"] = 1.0


ESCAPES = {escape.__name__: escape for escape in (wrapped_step, through_data, cleared_hooks)}


class Tampering:
    """Two groups, six steps in an epoch; `route` at every step, or `all` routes in turn."""

    def __init__(self):
        self.route = "none"

    def model(self, cfg):
        self.route = cfg.task_options.get("route", "none")
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def optimizer(self, model, cfg):
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.05}]
        self.held = OPTIMIZERS[cfg.task_options.get("optimizer", "sgd")](groups)
        return self.held

    def train_data(self, cfg):
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(48, 6, generator=generator)
        return x, x[:, :3].argmax(1)

    def val_data(self, cfg):
        return None

    def loss(self, model, batch):
        x, y = batch
        return functional.cross_entropy(model(x), y)

    def evaluate(self, model, batch):
        return {"loss": (self.loss(model, batch), 1)}

    def on_step_end(self, model, step):
        if self.route == "all":
            names = [name for name in ROUTES if name != "later_hook"]
            ROUTES[names[step % len(names)]](self.held, model)
        elif self.route != "none":
            (ROUTES | ESCAPES)[self.route](self.held, model)
