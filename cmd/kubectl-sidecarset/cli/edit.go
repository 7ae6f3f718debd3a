package cli

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// addDryRun adds the flag --dry-run, as kubectl has it.
func addDryRun(c *cobra.Command, dry *string) {
	c.Flags().StringVar(dry, "dry-run", "none", "print the change and do not make it; `mode` is none, client or server (let the API server and the operator check it)")
	c.Flags().Lookup("dry-run").NoOptDefVal = "client"
}

// The operator writes the status of a SidecarSet several times in a second while it updates Pods, and
// each write may come between the read and the write of an edit.
const (
	editFor   = 30 * time.Second
	editPause = 100 * time.Millisecond
)

// edit changes a SidecarSet, and prints what change returns unless that is "". If another user or
// the operator writes the object at the same time, change is called again, for up to editFor: no
// change is lost. A dry run prints what differs in the spec.
func (a *app) edit(ctx context.Context, c client.Client, name, dry string, change func(object *unstructured.Unstructured) (said string, err error)) error {
	if !slices.Contains([]string{"none", "client", "server"}, dry) {
		return fmt.Errorf("--dry-run is %q; write none, client or server", dry)
	}
	var before, after *unstructured.Unstructured
	said, changed := "", false
	try := func(ctx context.Context) (err error) {
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
	}
	var conflict error
	err := wait.PollUntilContextTimeout(ctx, editPause, editFor, true, func(ctx context.Context) (bool, error) {
		err := try(ctx)
		if apierrors.IsConflict(err) {
			conflict = err
			return false, nil
		}
		return err == nil, err
	})
	if conflict != nil && wait.Interrupted(err) {
		err = fmt.Errorf("other writers were faster for %s; run the command again: %w", editFor, conflict)
	}
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
