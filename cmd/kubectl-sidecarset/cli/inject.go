package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/manifest"
	"github.com/sidecarset/operator/internal/inject"
)

func (a *app) inject() *cobra.Command {
	var flags filesFlags
	c := &cobra.Command{
		Use:   "inject -f FILES",
		Short: "Print manifests with their sidecars, as the webhook would inject them",
		Long: `Print manifests with the sidecars that the webhook would inject into their Pods.

The manifests may hold Pods, workloads with Pod templates, also those of OpenKruise, Argo Rollouts
and others, Lists, and anything else, which is printed as it is. A workload whose Pod template is not
known is named on standard error, and the exit code stays 0. A manifest that gets sidecars loses its
comments and the order of its fields; the others are printed as they are. Without --sidecarsets,
SidecarSets and Namespaces come from the cluster.`,
		Example: `  kubectl sidecarset inject -f deployment.yaml -s sidecarsets.yaml
  kustomize build . | kubectl sidecarset inject -f - | kubectl apply -f -`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			files, err := a.injected(c.Context(), &flags)
			if err != nil {
				return err
			}
			return manifest.Write(a.Out, files)
		},
	}
	flags.add(c, "manifests")
	return c
}

func (a *app) diff() *cobra.Command {
	var flags filesFlags
	c := &cobra.Command{
		Use:   "diff -f FILES",
		Short: "Show what the webhook would inject into manifests, as a diff",
		Long: `Show what the webhook would inject into manifests, as a unified diff.

The exit code is 0 if nothing would be injected, 2 if something would be, and 1 for an error.`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			files, err := a.injected(c.Context(), &flags)
			if err != nil {
				return err
			}
			return a.printDiff(files)
		},
	}
	flags.add(c, "manifests")
	return c
}

// injected returns the manifests of -f with their sidecars.
func (a *app) injected(ctx context.Context, flags *filesFlags) ([]*manifest.File, error) {
	files, err := flags.read(a)
	if err != nil {
		return nil, err
	}
	w, err := flags.world(ctx, a, files)
	if err != nil {
		return nil, err
	}
	if err := w.UnusableError(); err != nil {
		return nil, err
	}
	namespace, err := a.namespace()
	if err != nil {
		return nil, err
	}
	var all []error
	for _, o := range objectsOf(files) {
		all = append(all, a.injectObject(ctx, w, o, namespace))
	}
	return files, errors.Join(all...)
}

// injectObject injects the Pod or the Pod template of an object, if it has one.
func (a *app) injectObject(ctx context.Context, w *clusterview.View, o *manifest.Object, namespace string) error {
	template, err := o.Template()
	if template == nil {
		a.noteHidden(o)
		return err
	}
	if o.Namespace != "" {
		namespace = o.Namespace
	}
	decision, err := w.Decide(ctx, namespace, template.Pod())
	switch {
	case err != nil:
		return undecided(template, err)
	case decision.Refused != nil:
		return o.Errorf("the webhook would refuse the Pod: %w", decision.Refused)
	}
	for _, warning := range decision.Plan.Warnings {
		fmt.Fprintf(a.ErrOut, "%s: %s\n", o.Describe(), warning.Text)
	}
	if len(decision.Pod.ImagePullSecrets) == 0 && slices.ContainsFunc(decision.Plan.Insertions, func(e inject.Edit) bool { return e.List == inject.ImagePullSecrets }) {
		fmt.Fprintf(a.ErrOut, "%s: a SidecarSet brings imagePullSecrets: with them in the manifest, the API server does not add those of the Pod's ServiceAccount. Add these to the manifest, if it has any\n", o.Describe())
	}
	return template.Apply(decision.Patch())
}

// noteHidden names a workload whose Pod template is not known.
func (a *app) noteHidden(o *manifest.Object) {
	if isSidecarSet(o) {
		return
	}
	if path := o.Hidden(); path != "" {
		fmt.Fprintf(a.ErrOut, "%s:%d: %s: it has containers in %s, but how its Pods are made is not known, so it is left out; the webhook injects them when they are created\n", o.File(), o.Line(), o.Describe(), path)
	}
}

// undecided says why nothing can be decided about a Pod, and where that is in the file: the engine
// names the field of the webhook's request.
func undecided(t *manifest.Template, err error) error {
	text, named := strings.CutPrefix(err.Error(), "request.object.")
	if !named {
		return t.Errorf("%w", err)
	}
	path, problem, _ := strings.Cut(text, " ")
	path = strings.TrimPrefix(t.Path+"."+path, ".")
	line, _ := t.Place(path)
	return &manifest.Error{File: t.File(), Line: line, Object: t.Describe(), Err: fmt.Errorf("%s %s", path, problem)}
}

// printDiff prints the documents that changed.
func (a *app) printDiff(files []*manifest.File) error {
	changed := false
	for _, file := range files {
		for _, document := range file.Documents {
			if !document.Changed() {
				continue
			}
			changed = true
			before, err := document.Formatted()
			if err != nil {
				return err
			}
			after, err := document.Text()
			if err != nil {
				return err
			}
			name := file.Name + ": " + document.Objects()[0].Describe()
			a.printUnified(string(diff.Diff(name, []byte(before), name+" (injected)", []byte(after))))
		}
	}
	if changed {
		return exit(exitChanges)
	}
	return nil
}

// printUnified prints a unified diff, in colours on a terminal.
func (a *app) printUnified(text string) {
	paint := a.painter()
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "+"):
			line = paint.green(line)
		case strings.HasPrefix(line, "-"):
			line = paint.red(line)
		case strings.HasPrefix(line, "@@"):
			line = paint.faint(line)
		case strings.HasPrefix(line, "diff "):
			continue // names the files once more
		}
		fmt.Fprint(a.Out, line)
	}
}
