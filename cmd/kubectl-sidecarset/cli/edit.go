package cli

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// addDryRun adds the flag --dry-run, as kubectl has it.
func addDryRun(c *cobra.Command, dry *string) {
	c.Flags().StringVar(dry, "dry-run", "none", "print the change and do not make it; `mode` is none, client or server (let the API server and the operator check it)")
	c.Flags().Lookup("dry-run").NoOptDefVal = "client"
}

// edit changes a SidecarSet, and prints what change returns unless that is "". If another author
// writes the object at the same time, change is called again: no change is lost. A dry run prints
// what differs in the spec.
func (a *app) edit(ctx context.Context, c client.Client, name, dry string, change func(object *unstructured.Unstructured) (said string, err error)) error {
	if !slices.Contains([]string{"none", "client", "server"}, dry) {
		return fmt.Errorf("--dry-run is %q; write none, client or server", dry)
	}
	var before, after *unstructured.Unstructured
	said, changed := "", false
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() (err error) {
		if before, err = sidecarSet(ctx, c, name); err != nil {
			return err
		}
		after = before.DeepCopy()
		if said, err = change(after); err != nil {
			return err
		}
		if changed = !reflect.DeepEqual(before, after); !changed || dry == "client" {
			return nil
		}
		options := &client.UpdateOptions{FieldManager: "kubectl-sidecarset"}
		if dry == "server" {
			options.DryRun = []string{metav1.DryRunAll}
		}
		return c.Update(ctx, after, options)
	})
	if err != nil || said == "" {
		return err
	}
	if !changed {
		said = "unchanged"
	}
	if dry != "none" {
		a.printUnified(string(diff.Diff("current", specText(before.Object["spec"]), "changed", specText(after.Object["spec"]))))
	}
	suffix := map[string]string{"client": " (dry run)", "server": " (server dry run)"}[dry]
	fmt.Fprintf(a.Out, "sidecarset.%s/%s %s%s\n", appsv1beta1.GroupVersion.Group, name, said, suffix)
	return nil
}

// specText renders a spec that was decoded from JSON.
func specText(spec any) []byte {
	text, _ := yaml.Marshal(map[string]any{"spec": spec}) // such values can be encoded
	return text
}
