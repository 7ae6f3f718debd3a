package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/explain"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/manifest"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/outcome"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
)

func (a *app) plan() *cobra.Command {
	var files filesFlags
	var output string
	c := &cobra.Command{
		Use:   "plan -f FILES",
		Short: "Show what applying SidecarSets will do to running Pods",
		Long: `Show what applying SidecarSets will do to running Pods, before they are applied.

The API server is asked to apply them in a dry run, so its webhooks answer with their warnings; you
need the right to apply them. Nothing is written.
Several SidecarSets are planned one after the other, as if those before were applied.

The exit code is 0 if nothing changes, 2 if something does, and 1 for an error or a refusal.`,
		Example: `  kubectl sidecarset plan -f log-agent.yaml
  kubectl sidecarset plan -f log-agent.yaml -o json | jq '.sidecarSets[].pods'`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			_, config, err := a.client()
			if err != nil {
				return err
			}
			p := &planner{app: a}
			config.WarningHandler = p
			if p.client, err = client.New(config, client.Options{}); err != nil {
				return err
			}
			if p.resizes, err = resizes(config); err != nil {
				return err
			}
			return p.run(c.Context(), &files, output)
		},
	}
	files.addFiles(c, "SidecarSets")
	c.Flags().StringVarP(&output, "output", "o", "", "`format`: json or yaml")
	return c
}

// resizes reports whether the API server has the subresource pods/resize.
func resizes(config *rest.Config) (bool, error) {
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return false, err
	}
	served, err := d.ServerResourcesForGroupVersion("v1")
	if err != nil {
		return false, fmt.Errorf("asking the API server for its resources: %w", err)
	}
	return slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == "pods/resize" }), nil
}

// planner plans SidecarSets of files against a cluster.
type planner struct {
	*app
	client  client.Client
	resizes bool
	parts   clusterview.Parts
	nodes   map[string]inplace.Node
	// warnings are what the API server has warned about since the last SidecarSet.
	warnings []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (p *planner) HandleWarningHeader(_ int, _ string, text string) {
	if !slices.Contains(p.warnings, text) {
		p.warnings = append(p.warnings, text)
	}
}

// sidecarSetPlan is the plan for one SidecarSet. Its form as JSON is stable.
type sidecarSetPlan struct {
	Name string `json:"name"`
	// Action is create, update or none.
	Action string `json:"action"`
	// Diff is a unified diff of the stored SidecarSet and the new one.
	Diff     string   `json:"diff,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Missing are the ConfigMaps and Secrets that the sidecars need and that Namespaces lack.
	Missing []*missing `json:"missing,omitempty"`
	// NewPods says when new Pods get the revision, if they do not get it immediately.
	NewPods string `json:"newPods,omitempty"`
	*outcome.Plan
}

func (p *planner) run(ctx context.Context, flags *filesFlags, output string) error {
	files, err := flags.read(p.app)
	if err != nil {
		return err
	}
	objects := slices.DeleteFunc(objectsOf(files), func(o *manifest.Object) bool { return !isSidecarSet(o) })
	if len(objects) == 0 {
		return errors.New("no SidecarSet is in the files of --filename")
	}
	if err := p.read(ctx, flags.excluded); err != nil {
		return err
	}
	var plans []*sidecarSetPlan
	changes := false
	var all []error
	for _, o := range objects {
		plan, err := p.planOne(ctx, o)
		if err != nil {
			all = append(all, err) // the others are planned
			continue
		}
		plans, changes = append(plans, plan), changes || plan.Action != "none"
	}
	if output != "" && len(plans) > 0 {
		all = append(all, p.printAs(output, map[string]any{"sidecarSets": plans}))
	} else {
		for i, plan := range plans {
			if i > 0 {
				fmt.Fprintln(p.Out)
			}
			p.printPlan(plan)
		}
	}
	if err := errors.Join(all...); err != nil {
		return err
	}
	if changes {
		return exit(exitChanges)
	}
	return nil
}

// read reads what is stored, except Pods and Nodes.
func (p *planner) read(ctx context.Context, excluded []string) error {
	at, err := now()
	if err != nil {
		return err
	}
	p.parts = clusterview.Parts{Namespaces: map[string]labels.Set{}, Excluded: append([]string{p.operatorNamespace}, excluded...), Now: at}
	sets, err := sidecarSets(ctx, p.client)
	if err != nil {
		return err
	}
	for i := range sets {
		p.parts.SidecarSets = append(p.parts.SidecarSets, sets[i].Object)
	}
	if p.parts.Revisions, err = p.revisions(ctx, p.client, ""); err != nil {
		return err
	}
	return p.namespaces(ctx, p.client, p.parts.Namespaces)
}

// planOne plans one SidecarSet. Those that are planned later see it as applied.
func (p *planner) planOne(ctx context.Context, o *manifest.Object) (*sidecarSetPlan, error) {
	p.warnings = nil
	if o.Name == "" {
		return nil, o.Errorf("it has no metadata.name, which kubectl apply needs; plan does what apply does")
	}
	old, applied, err := p.apply(ctx, o)
	if err != nil {
		return nil, refusal(o, err)
	}
	plan := &sidecarSetPlan{Name: o.Name, Action: "create", Warnings: p.warnings}
	if old != nil {
		if plan.Diff = difference(old, applied); plan.Diff == "" {
			plan.Action = "none"
			return plan, nil
		}
		plan.Action = "update"
	}
	before := clusterview.New(p.parts)
	p.parts.SidecarSets = append(slices.DeleteFunc(slices.Clone(p.parts.SidecarSets), func(object map[string]any) bool {
		return hub.NameOf(object) == o.Name
	}), applied)
	after := clusterview.New(p.parts)
	var sidecarSets []*inject.Compiled
	for _, w := range []*clusterview.View{before, after} {
		if compiled, ok := w.Snapshot.Get(o.Name); ok {
			sidecarSets = append(sidecarSets, compiled)
		}
	}
	pods, err := p.pods(ctx, sidecarSets)
	if err != nil {
		return nil, err
	}
	if len(pods) > 1000 { // takes longer than a second
		fmt.Fprintf(p.ErrOut, "judging %d Pods\n", len(pods))
	}
	if compiled, ok := after.Snapshot.Get(o.Name); ok {
		spec, _ := applied["spec"].(map[string]any)
		revision, err := explain.Revision(spec)
		if err != nil {
			return nil, o.Errorf("%w", err)
		}
		plan.Missing = p.missing(ctx, compiled, revision, after.Excluded, pods)
		if longer := p.longerMinReady(ctx, compiled, pods); longer != "" {
			plan.Warnings = append(plan.Warnings, longer)
		}
	}
	plan.Plan, err = outcome.Of(ctx, outcome.Input{
		Old: old, New: applied, Before: before, After: after, Revisions: p.parts.Revisions, Pods: pods, Resizes: p.resizes,
		Node: func(name string) (inplace.Node, error) { return p.node(ctx, name) },
	})
	if err != nil {
		return nil, o.Errorf("%w", err)
	}
	if compiled, ok := after.Snapshot.Get(o.Name); ok {
		plan.NewPods = newPodsWait(old, compiled, plan.Plan)
	}
	return plan, nil
}

// apply applies a manifest as kubectl apply does, in a dry run, and returns the SidecarSet before
// and after. One that kubectl apply has made is patched, so that fields that the manifest does not
// have any more are removed; another one is applied by the manager that applied it before.
func (p *planner) apply(ctx context.Context, o *manifest.Object) (old, applied map[string]any, err error) {
	sent := (&unstructured.Unstructured{Object: o.Value}).DeepCopy()
	unstructured.RemoveNestedField(sent.Object, "status")
	sent.SetManagedFields(nil)
	sent.SetNamespace("") // as kubectl does
	sent.SetResourceVersion("")
	sent.SetUID("")
	stored := &unstructured.Unstructured{}
	stored.SetGroupVersionKind(sent.GroupVersionKind())
	switch err := p.client.Get(ctx, client.ObjectKeyFromObject(sent), stored); {
	case meta.IsNoMatchError(err):
		return nil, nil, errNoKind
	case err == nil:
		if old, err = clusterview.Stored(stored.Object); err != nil {
			return nil, nil, err
		}
	case !apierrors.IsNotFound(err):
		return nil, nil, err
	}
	if last := stored.GetAnnotations()[corev1.LastAppliedConfigAnnotation]; last != "" {
		var current, modified, patch []byte
		if current, err = json.Marshal(stored); err != nil {
			return nil, nil, err
		}
		if modified, err = json.Marshal(sent); err != nil {
			return nil, nil, err
		}
		if patch, err = jsonmergepatch.CreateThreeWayJSONMergePatch([]byte(last), modified, current); err != nil {
			return nil, nil, err
		}
		sent = stored
		err = p.client.Patch(ctx, sent, client.RawPatch(types.MergePatchType, patch), client.DryRunAll, client.FieldOwner("kubectl-client-side-apply"))
	} else {
		owner := client.FieldOwner("kubectl")
		for _, m := range stored.GetManagedFields() {
			if m.Operation == metav1.ManagedFieldsOperationApply && m.Subresource == "" {
				owner = client.FieldOwner(m.Manager)
			}
		}
		err = p.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(sent), client.DryRunAll, client.ForceOwnership, owner)
	}
	if err == nil {
		applied, err = clusterview.Stored(sent.Object)
	}
	return old, applied, err
}

// refusal says why a SidecarSet cannot be applied, with the places of the fields in the file.
func refusal(o *manifest.Object, err error) error {
	status, is := errors.AsType[*apierrors.StatusError](err)
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "cannot ") {
		err = fmt.Errorf("%w; plan applies it in a dry run, which needs the right to apply it", err)
	}
	if !is || status.Status().Details == nil || !slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field != "" }) {
		return o.Errorf("it cannot be applied: %w", err)
	}
	var all []error
	for _, cause := range status.Status().Details.Causes {
		line, _ := o.Place(cause.Field)
		all = append(all, &manifest.Error{File: o.File(), Line: line, Object: o.Describe(), Err: fmt.Errorf("%s: %s", cause.Field, cause.Message)})
	}
	return errors.Join(all...)
}

// difference is a unified diff of what users write in two SidecarSets; "" if that is the same.
func difference(old, applied map[string]any) string {
	text := func(object map[string]any) []byte {
		u := unstructured.Unstructured{Object: asWritten(object)}
		annotations := u.GetAnnotations()
		delete(annotations, corev1.LastAppliedConfigAnnotation)
		out, _ := yaml.Marshal(struct { // all of it was JSON
			Annotations map[string]string `json:"annotations,omitempty"`
			Labels      map[string]string `json:"labels,omitempty"`
			Spec        any               `json:"spec"`
		}{annotations, u.GetLabels(), object["spec"]})
		return out
	}
	return string(diff.Diff("stored", text(old), "new", text(applied)))
}

// pods reads the Pods that one of the Programs selects.
func (p *planner) pods(ctx context.Context, sidecarSets []*inject.Compiled) (pods []*corev1.Pod, err error) {
	known, read := map[types.UID]bool{}, map[string]bool{}
	for _, compiled := range sidecarSets {
		namespaces := []string{""}
		if !compiled.NamespaceSelector.Empty() {
			namespaces = nil
			for name, set := range p.parts.Namespaces {
				if compiled.NamespaceSelector.Matches(set) {
					namespaces = append(namespaces, name)
				}
			}
		}
		for _, namespace := range namespaces {
			key := namespace + "/" + compiled.Selector.String()
			if read[key] {
				continue
			}
			read[key] = true
			list := &corev1.PodList{}
			err := each(ctx, p.client, p.ErrOut, "Pods", list, func() {
				for i := range list.Items {
					if pod := &list.Items[i]; !known[pod.UID] {
						known[pod.UID] = true
						pod.ManagedFields = slices.DeleteFunc(pod.ManagedFields, func(m metav1.ManagedFieldsEntry) bool { return m.Subresource != "resize" })
						pods = append(pods, pod)
					}
				}
				list.Items = nil // the next page must not overwrite these
			}, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: compiled.Selector})
			if err != nil {
				return nil, err
			}
		}
	}
	return pods, nil
}

// node reads the state of a Node, once.
func (p *planner) node(ctx context.Context, name string) (inplace.Node, error) {
	if node, known := p.nodes[name]; known {
		return node, nil
	}
	node := &corev1.Node{}
	err := p.client.Get(ctx, types.NamespacedName{Name: name}, node)
	if apierrors.IsNotFound(err) {
		node, err = nil, nil
	}
	if err != nil {
		return inplace.Node{}, fmt.Errorf("reading Node %s: %w", name, err)
	}
	if p.nodes == nil {
		p.nodes = map[string]inplace.Node{}
	}
	p.nodes[name] = inplace.NodeOf(node)
	return p.nodes[name], nil
}
