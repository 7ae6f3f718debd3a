package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/revision"
)

// history is what is recorded of one SidecarSet.
type history struct {
	name     string
	recorded revision.History
	content  []byte // what a revision of the stored spec records
}

func (a *app) historyOf(ctx context.Context, c client.Client, object *unstructured.Unstructured) (*history, error) {
	name := object.GetName()
	all, err := a.revisions(ctx, c, name)
	if err != nil {
		return nil, err
	}
	h := &history{name: name, recorded: revision.NewHistory(all, revision.Owner{Name: name, UID: object.GetUID()})}
	if len(h.recorded) == 0 {
		return nil, fmt.Errorf("no revision of SidecarSet %q is in namespace %s; --operator-namespace names the operator's namespace", name, a.operatorNamespace)
	}
	spec, _ := object.Object["spec"].(map[string]any)
	if h.content, err = revision.Data(spec); err != nil {
		return nil, fmt.Errorf("reading SidecarSet %q: %w", name, err)
	}
	return h, nil
}

func (h *history) isCurrent(r *appsv1.ControllerRevision) bool {
	return bytes.Equal(r.Data.Raw, h.content)
}

// find returns the revision with a number, and the spec that it records. Number 0 means the newest
// with another content than the current one.
func (h *history) find(number int64) (*appsv1.ControllerRevision, map[string]any, error) {
	for _, r := range slices.Backward(h.recorded) {
		if r.Revision == number || number == 0 && !h.isCurrent(r) {
			spec, err := revision.Spec(r.Data.Raw)
			if err != nil {
				err = fmt.Errorf("reading ControllerRevision %s: %w", r.Name, err)
			}
			return r, spec, err
		}
	}
	if number == 0 {
		return nil, nil, fmt.Errorf("SidecarSet %q has no earlier revision", h.name)
	}
	return nil, nil, fmt.Errorf("SidecarSet %q has no revision %d; kubectl sidecarset rollout history %s lists them", h.name, number, h.name)
}

func (a *app) rolloutHistory() *cobra.Command {
	var number int64
	c := a.verb(&cobra.Command{
		Use:   "history NAME",
		Short: "List the recorded revisions of a SidecarSet",
		Long: `List the recorded revisions of a SidecarSet, oldest first, with the Pods that carry each. With
--revision, print what a revision records; kubectl sidecarset rollout undo --dry-run prints how it
differs from the current content.`,
	}, func(ctx context.Context, c client.Client, name string, _ []string) error {
		object, err := sidecarSet(ctx, c, name)
		if err != nil {
			return err
		}
		h, err := a.historyOf(ctx, c, object)
		switch {
		case err != nil:
			return err
		case number == 0:
			return a.printHistory(h, object)
		}
		_, spec, err := h.find(number)
		if err == nil {
			_, err = a.Out.Write(specText(spec))
		}
		return err
	})
	c.Flags().Int64Var(&number, "revision", 0, "print this `number`")
	return c
}

func (a *app) printHistory(h *history, object *unstructured.Unstructured) error {
	set, err := hub.Typed(object.Object)
	if err != nil {
		return fmt.Errorf("reading SidecarSet %q: %w", h.name, err)
	}
	pods := map[string]int32{}
	for _, r := range set.Status.Revisions {
		pods[r.Name] = r.Pods
	}
	w := printers.GetNewTabWriter(a.Out)
	fmt.Fprintln(w, "REVISION\tNAME\tVERSION\tPODS\tAGE\tIMAGES")
	for _, r := range h.recorded {
		var recorded appsv1beta1.SidecarSet
		if err := json.Unmarshal(r.Data.Raw, &recorded); err != nil {
			return fmt.Errorf("reading ControllerRevision %s: %w", r.Name, err)
		}
		var images []string
		for _, container := range slices.Concat(recorded.Spec.InitContainers, recorded.Spec.Containers) {
			images = append(images, container.Name+"="+container.Image)
		}
		number := strconv.FormatInt(r.Revision, 10)
		if h.isCurrent(r) {
			number += " (current)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", number, r.Name, cmp.Or(r.Labels[appsv1beta1.LabelCustomVersion], "-"),
			pods[r.Name], duration.HumanDuration(time.Since(revision.CurrentSince(r))), strings.Join(images, ","))
	}
	return w.Flush()
}

func (a *app) rolloutUndo() *cobra.Command {
	var number int64
	var dry string
	c := a.verb(&cobra.Command{
		Use:   "undo NAME",
		Short: "Write a recorded revision back into a SidecarSet",
		Long: `Write a recorded revision back into a SidecarSet: by default, the newest with another content
than the current one. Selectors and strategies are not recorded and stay as they are. With
--dry-run, print what would change.`,
	}, func(ctx context.Context, c client.Client, name string, _ []string) error {
		return a.edit(ctx, c, name, dry, func(object *unstructured.Unstructured) (string, error) {
			h, err := a.historyOf(ctx, c, object)
			if err != nil {
				return "", err
			}
			r, spec, err := h.find(number)
			if err != nil {
				return "", err
			}
			if !h.isCurrent(r) {
				restore(object, spec, r.Labels[appsv1beta1.LabelCustomVersion])
			}
			said := fmt.Sprintf("rolled back to revision %d (%s)", r.Revision, r.Name)
			if paused, _, _ := unstructured.NestedBool(object.Object, "spec", "updateStrategy", "paused"); paused {
				said += "; the rollout is paused, and running Pods keep what they have until kubectl sidecarset rollout resume " + name
			}
			return said, nil
		})
	})
	c.Flags().Int64Var(&number, "to-revision", 0, "the `number` of the revision; 0 means the previous content")
	addDryRun(c, &dry)
	return c
}

// restore gives a SidecarSet the content of a revision, and its custom version: that names the
// content.
func restore(object *unstructured.Unstructured, recorded map[string]any, customVersion string) {
	spec, _ := object.Object["spec"].(map[string]any)
	for _, member := range append(revision.Members(), "customVersion") {
		delete(spec, member)
	}
	maps.Copy(spec, recorded)
	if customVersion != "" {
		spec["customVersion"] = customVersion
	}
}
