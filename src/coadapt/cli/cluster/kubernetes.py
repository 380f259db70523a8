"""``coadapt kubernetes``: files for a cluster on Kubernetes."""

from __future__ import annotations

import click


@click.group("kubernetes")
def command() -> None:
    """Print files for a cluster on Kubernetes."""


@command.command("manifest")
@click.option("-n", "--namespace", required=True, help="Namespace of the controller and its units.")
@click.option(
    "--image", required=True, help="Container image with coadapt, see 'coadapt kubernetes containerfile'."
)
@click.option("--name", default="coadapt", help="Name of all objects.")
@click.option("--storage", default="100Gi", help="Size of the volume for checkpoints, which all nodes share.")
@click.option(
    "--storage-class",
    default="",
    show_default=False,
    help="Storage class of that volume; several nodes must be able to write it. Default: the cluster's.",
)
@click.option(
    "--tls-secret",
    default="",
    show_default=False,
    metavar="NAME",
    help="Secret with tls.crt and tls.key for the API. Default: no TLS inside the network of the pods.",
)
@click.option(
    "--engine-option",
    "engine_settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="Option of the engine, for example node_selector=pool=gpu or queue=team-a. Repeatable.",
)
def manifest(
    namespace: str,
    image: str,
    name: str,
    storage: str,
    storage_class: str,
    tls_secret: str,
    engine_settings: tuple[str, ...],
) -> None:
    """Print a controller with the least rights that it needs: service account, roles, volumes, service, StatefulSet.

    The right to list nodes is of the whole cluster. Without it name the nodes: --engine-option nodes=gpu-1:8:a100,gpu-2:8:a100

    \b
    coadapt kubernetes manifest -n team --image registry.example/coadapt:0.1.0 | kubectl apply -f -
    """
    from coadapt.live import kubernetes_manifest

    text = kubernetes_manifest(
        namespace=namespace,
        image=image,
        name=name,
        storage=storage,
        storage_class=storage_class,
        tls_secret=tls_secret,
        engine_settings=engine_settings,
    )
    click.echo(text, nl=False)


@command.command("containerfile")
def containerfile() -> None:
    """Print the recipe of an image with coadapt, built from its wheel.

    \b
    coadapt kubernetes containerfile > Containerfile
    """
    from coadapt.live import containerfile

    click.echo(containerfile(), nl=False)
