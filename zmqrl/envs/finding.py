"""From the name a user typed to an environment: gymnasium's registry, or a module that the user named."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import VectorEnv

from zmqrl.config import EnvConfig
from zmqrl.errors import EnvironmentNotFound, UsageError

AnyEnv = gymnasium.Env[Any, Any]
AnyVectorEnv = VectorEnv[Any, Any, Any]


def make_env(config: EnvConfig) -> AnyEnv:
    """Make one environment.

    Raises EnvironmentNotFound (unknown name, failed import, missing dependency) or UsageError (wrong arguments);
    what the environment's own constructor raises passes through.
    """
    target = _find(config.env)
    if isinstance(target, EnvSpec):
        env = _construct(config, lambda **kwargs: gymnasium.make(target, **kwargs), disable_env_checker=True)
    else:
        env = _construct(config, target)
    if isinstance(env, VectorEnv):
        raise UsageError(f"{config.env} is a vectorized environment: set vectorization = vector_entry_point.")
    if not isinstance(env, gymnasium.Env):
        raise UsageError(f"{config.env} gave a {type(env).__name__}, which is no gymnasium.Env. Derive it from that.")
    return env


def make_vector_env(config: EnvConfig, num_envs: int) -> AnyVectorEnv:
    """Make the environment's own vectorized implementation. Raises as `make_env` does."""
    target = _find(config.env)
    if not isinstance(target, EnvSpec):
        envs = _construct(config, target, num_envs=num_envs)
    elif target.vector_entry_point is None:
        raise UsageError(f"{config.env} has no vectorized implementation: set vectorization = sync or async.")
    else:
        envs = _construct(
            config,
            lambda **kwargs: gymnasium.make_vec(target, vectorization_mode="vector_entry_point", **kwargs),
            num_envs=num_envs,
        )
    if not isinstance(envs, VectorEnv):
        raise UsageError(f"{config.env} gave a {type(envs).__name__}, which is no gymnasium.vector.VectorEnv.")
    return envs


def _construct(config: EnvConfig, constructor: Callable[..., Any], **ours: Any) -> Any:
    try:
        return constructor(**{**ours, **config.env_kwargs})
    except (DependencyNotInstalled, ModuleNotFoundError) as error:
        raise EnvironmentNotFound(f"{config.env} is known, but something it needs is missing here: {error}") from error
    except gymnasium.error.Error as error:
        raise UsageError(f"{config.env} cannot be made: {error}") from error
    except TypeError as error:
        if "argument" not in str(error) and "gymnasium.Env" not in str(error):
            raise
        raise UsageError(f"{config.env} cannot be made with env_kwargs = {config.env_kwargs}: {error}") from error


def _find(name: str) -> EnvSpec | Callable[..., Any]:
    """The registered spec, or the class or function, that `name` stands for."""
    module_name, colon, own_name = name.rpartition(":")
    module = _import(name, module_name) if colon else None
    spec = gymnasium.registry.get(own_name)
    if spec is not None:
        return spec
    if module is None:
        raise EnvironmentNotFound(
            f"gymnasium knows no environment {name!r} here.{_nearest(own_name, gymnasium.registry)} "
            f"If a module of yours registers it, type package.module:{name}."
        )
    target = getattr(module, own_name, None)
    if callable(target):
        return target  # type: ignore[no-any-return]  # whatever the user named; its result is checked
    classes = [key for key, item in vars(module).items() if inspect.isclass(item) and issubclass(item, gymnasium.Env)]
    raise EnvironmentNotFound(
        f"{module_name} was imported, but it registers no environment {own_name!r} and has no class or function of "
        f"that name.{_nearest(own_name, [*gymnasium.registry, *classes])}"
    )


def _import(name: str, module_name: str) -> ModuleType:
    """Import what the user typed; the current folder is searched last, so it hides no installed package."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        raise EnvironmentNotFound(
            f"{name}: the module {module_name!r} cannot be imported: {type(error).__name__}: {error}. Searched: the "
            f"current folder {os.getcwd()} and the packages of {sys.executable}."
        ) from error


def _nearest(name: str, known: Iterable[str]) -> str:
    by_lower_case = {key.lower(): key for key in known}
    found = difflib.get_close_matches(name.lower(), by_lower_case, n=3)
    return f" Nearest: {', '.join(by_lower_case[key] for key in found)}." if found else ""
