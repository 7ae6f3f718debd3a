package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/migrate"
	"github.com/sidecarset/operator/internal/validation"
)

func (a *app) migrate() *cobra.Command {
	var back bool
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Say what changes for SidecarSets of OpenKruise, and how to move here or back",
		Long: `Say what changes for SidecarSets of OpenKruise with this operator, and print the steps of
docs/migration.md as commands. Nothing in the cluster is changed.

The exit code is 0 if there is nothing to decide, 2 if there is, and 1 for an error.`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			if back {
				fmt.Fprint(a.Out, migrate.Back)
				return nil
			}
			notes, err := a.lookAtOpenKruise(c.Context())
			if err != nil {
				return err
			}
			for _, n := range notes {
				label := a.painter().yellow("NOTE   ")
				if n.Refused {
					label = a.painter().red("REFUSED")
				}
				fmt.Fprintf(a.Out, "%s  %s: %s\n", label, n.Object, oneLine(n.Text))
			}
			if len(notes) == 0 {
				fmt.Fprint(a.Out, "Nothing changes that has to be decided.\n\n", migrate.To)
				return nil
			}
			fmt.Fprint(a.Out, "An object that is stored stays in use where it is REFUSED; a new one cannot be created.\n\n", migrate.To)
			return exit(exitChanges)
		},
	}
	c.Flags().BoolVar(&back, "back", false, "print the steps from this operator to OpenKruise")
	return c
}

// lookAtOpenKruise says what changes in the cluster.
func (a *app) lookAtOpenKruise(ctx context.Context) ([]migrate.Note, error) {
	c, _, err := a.client()
	if err != nil {
		return nil, err
	}
	parts := &clusterview.Parts{Namespaces: map[string]labels.Set{}, Excluded: []string{"kube-system", a.operatorNamespace}}
	if err := a.readCluster(ctx, parts); err != nil {
		return nil, err
	}
	var whitelist corev1.ConfigMap
	var managers appsv1.DeploymentList
	var configurations admissionregistrationv1.MutatingWebhookConfigurationList
	if err := cmp.Or( // the first error
		a.namespaces(ctx, c, parts.Namespaces),
		client.IgnoreNotFound(c.Get(ctx, client.ObjectKey{Namespace: migrate.Namespace, Name: validation.WhitelistConfigMap}, &whitelist)),
		c.List(ctx, &managers, client.InNamespace(migrate.Namespace)),
		c.List(ctx, &configurations),
	); err != nil {
		return nil, err
	}
	return slices.Concat(
		migrate.SidecarSets(parts, whitelist.Data[validation.WhitelistKey]), migrate.Namespaces(parts),
		migrate.Gates(managers.Items), migrate.Between(configurations.Items),
	), nil
}
