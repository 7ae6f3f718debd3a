package cli

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// completionTimeout is how long a shell waits for names.
const completionTimeout = 3 * time.Second

// completeSidecarSets is the ValidArgsFunction of commands whose arguments are SidecarSets.
func (a *app) completeSidecarSets(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	names := a.names(c.Context(), appsv1beta1.Kind)
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) }), cobra.ShellCompDirectiveNoFileComp
}

// names returns the names of objects in the cluster, those of one page at most.
// Without an answer there are none.
func (a *app) names(ctx context.Context, kind schema.GroupVersionKind) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	c, _, err := a.client()
	if err != nil {
		return nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	options := []client.ListOption{client.Limit(pageSize)}
	if kind != appsv1beta1.Kind {
		namespace, err := a.namespace()
		if err != nil {
			return nil
		}
		options = append(options, client.InNamespace(namespace))
	}
	if c.List(ctx, list, options...) != nil {
		return nil
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}
