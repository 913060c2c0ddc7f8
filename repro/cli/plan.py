"""`repro plan`: what would be measured."""

from repro.cli.choice import PlanOptions, choose, plans_of, say_scale, training_price
from repro.harness import catalog, machine
from repro.harness.progress import plan_table, summary
from repro.harness.terminal import console_for


def main(arguments: list[str]) -> int:
    options, chosen = choose(PlanOptions, "plan", arguments)
    console = console_for(markup=False)
    say_scale(options)
    plans = plans_of(options, chosen, without_gpus=True)
    # Models that a user chose are checked. An experiment of the project with its own parameters is
    # planned without importing torch.
    known = catalog.names()
    unchecked = [plan for plan in plans if plan.command not in known or plan.accumulate]
    if unchecked:
        from repro.harness.rehearsal import check_plans

        check_plans(unchecked)
    trainings = training_price(plans)
    for plan in plans:
        console.print(
            f"\n{plan.experiment.name}: {plan.experiment.title}\n{plan.experiment.question}\n",
            style="bold",
        )
        console.print(plan_table(plan))
        console.print("\n".join([summary(plan), *plan.notes]), soft_wrap=True)
    if trainings is not None:
        console.print("\n" + "\n".join(trainings.lines), soft_wrap=True)
    if any(plan.machine == machine.without_gpus() for plan in plans):
        console.print(
            "\ntorch can use no GPU here, so `repro run` refuses this scale; --scale laptop runs",
            soft_wrap=True,
        )
    return 0
