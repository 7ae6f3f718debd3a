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
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/progress"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/members"
	"github.com/sidecarset/operator/internal/revision"
)

// history is what is recorded of one SidecarSet.
type history struct {
	name     string
	recorded revision.History
	revision []byte // what a revision of the stored spec records
	status   *appsv1beta1.SidecarSetStatus
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
	if h.revision, err = revision.Data(spec); err != nil {
		return nil, fmt.Errorf("reading SidecarSet %q: %w", name, err)
	}
	set, err := hub.Typed(object.Object)
	if err != nil {
		return nil, fmt.Errorf("reading SidecarSet %q: %w", name, err)
	}
	h.status = &set.Status
	return h, nil
}

func (h *history) isCurrent(r *appsv1.ControllerRevision) bool {
	return bytes.Equal(r.Data.Raw, h.revision)
}

// back returns the revision that undo goes to, of those with another revision than the current one: the stable
// one if it has a ready Pod, or the one with most ready Pods. If none has a ready Pod, it is the newest of these. why says that; the result is
// nil if there is no other revision.
func (h *history) back() (to *appsv1.ControllerRevision, why string) {
	current := ""
	for _, r := range h.recorded {
		if h.isCurrent(r) {
			current = r.Name
		} else {
			to = r
		}
	}
	worked := progress.Worked(h.status, current)
	for _, r := range h.recorded {
		switch {
		case worked == nil || r.Name != worked.Name:
		case r.Name == h.status.StableRevision:
			return r, fmt.Sprintf("it is the stable one, and %d ready Pods have it", worked.ReadyPods)
		default:
			return r, fmt.Sprintf("%d ready Pods have it", worked.ReadyPods)
		}
	}
	return to, "no other revision has a ready Pod, and this one is the newest"
}

// find returns the revision with a number, the spec that it records, and what is to be said of it. Number 0
// means the one that undo goes to.
func (h *history) find(number int64) (*appsv1.ControllerRevision, map[string]any, string, error) {
	to, why := h.back()
	if number != 0 {
		why = ""
		at := slices.IndexFunc(h.recorded, func(r *appsv1.ControllerRevision) bool { return r.Revision == number })
		if at < 0 {
			return nil, nil, "", fmt.Errorf("SidecarSet %q has no revision %d; kubectl sidecarset rollout history %s lists them", h.name, number, h.name)
		}
		to = h.recorded[at]
	}
	if to == nil {
		return nil, nil, "", fmt.Errorf("SidecarSet %q has no earlier revision", h.name)
	}
	spec, err := revision.Spec(to.Data.Raw)
	if err != nil {
		err = fmt.Errorf("reading ControllerRevision %s: %w", to.Name, err)
	}
	return to, spec, why, err
}

func (a *app) rolloutHistory() *cobra.Command {
	var number int64
	c := a.verb(&cobra.Command{
		Use:   "history NAME",
		Short: "List the recorded revisions of a SidecarSet",
		Long: `List the recorded revisions of a SidecarSet, oldest first, with the Pods that have each, and the one
that undo goes to. With --revision, print what a revision records; kubectl sidecarset rollout undo --dry-run prints how it
differs from the current revision.`,
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
			return a.printHistory(h)
		}
		_, spec, _, err := h.find(number)
		if err == nil {
			_, err = a.Out.Write(specText(spec))
		}
		return err
	})
	c.Flags().Int64Var(&number, "revision", 0, "print this `number`")
	return c
}

func (a *app) printHistory(h *history) error {
	pods := map[string]appsv1beta1.SidecarSetRevisionPods{}
	for _, r := range h.status.Revisions {
		pods[r.Name] = r
	}
	back, why := h.back()
	w := printers.GetNewTabWriter(a.Out)
	fmt.Fprintln(w, "REVISION\tNAME\tVERSION\tPODS\tREADY\tAGE\tIMAGES")
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
		} else if r == back {
			number += " (undo)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\n", number, r.Name, cmp.Or(r.Labels[appsv1beta1.LabelCustomVersion], "-"),
			pods[r.Name].Pods, pods[r.Name].ReadyPods, duration.HumanDuration(time.Since(revision.CurrentSince(r))), strings.Join(images, ","))
	}
	err := w.Flush()
	if back != nil {
		fmt.Fprintf(a.Out, "undo goes to revision %d: %s\n", back.Revision, why)
	}
	return err
}

func (a *app) rolloutUndo() *cobra.Command {
	var number int64
	var dry string
	c := a.verb(&cobra.Command{
		Use:   "undo NAME",
		Short: "Write a recorded revision back into a SidecarSet",
		Long: `Write a recorded revision back into a SidecarSet: by default the stable one (status.stableRevision) if a
ready Pod has it, else the one with most ready Pods of those with another content than the current one,
so that two bad edits in a row lead back to what worked.
If none has a ready Pod, it is the newest of these. Selectors and strategies are not recorded and
stay as they are. With --dry-run, print what would change.`,
	}, func(ctx context.Context, c client.Client, name string, _ []string) error {
		return a.undo(ctx, c, name, number, dry)
	})
	c.Flags().Int64Var(&number, "to-revision", 0, "the `number` of the revision; 0 means the one that history marks")
	addDryRun(c, &dry)
	return c
}

// undo writes a revision back; number 0 means the one that history marks.
func (a *app) undo(ctx context.Context, c client.Client, name string, number int64, dry string) error {
	return a.edit(ctx, c, name, dry, func(object *unstructured.Unstructured) (string, error) {
		h, err := a.historyOf(ctx, c, object)
		if err != nil {
			return "", err
		}
		r, spec, why, err := h.find(number)
		if err != nil {
			return "", err
		}
		if !h.isCurrent(r) {
			restore(object, spec, r.Labels[appsv1beta1.LabelCustomVersion])
		}
		said := fmt.Sprintf("rolled back to revision %d (%s)", r.Revision, r.Name)
		if why != "" {
			said += ": " + why
		}
		if paused, _, _ := unstructured.NestedBool(object.Object, "spec", "updateStrategy", "paused"); paused {
			said += "; the rollout is paused, and running Pods keep what they have until kubectl sidecarset rollout resume " + name
		}
		return said, nil
	})
}

// restore gives a SidecarSet the injected fields of a revision, and its custom version, which names them.
func restore(object *unstructured.Unstructured, recorded map[string]any, customVersion string) {
	spec, _ := object.Object["spec"].(map[string]any)
	for _, m := range members.Injected {
		delete(spec, m.Name)
	}
	delete(spec, "customVersion")
	maps.Copy(spec, recorded)
	if customVersion != "" {
		spec["customVersion"] = customVersion
	}
}
