package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/explain"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/manifest"
)

func (a *app) explain() *cobra.Command {
	e := &explanation{app: a}
	c := &cobra.Command{
		Use:   "explain [TYPE/]NAME [SIDECARSET...] | -f FILES [SIDECARSET...]",
		Short: "Say for each SidecarSet why a Pod has its sidecars, or has not",
		Long: `Say for each SidecarSet why a Pod has its sidecars, or has not, and what to do about it.

NAME is a Pod, unless TYPE is a workload, such as deploy, sts, ds, rs, job or cronjob. For a workload
and for manifests, the answers are about the next Pod. For a workload of the cluster, the API
server is asked to create that Pod in a dry run, so that its answer and the answers of other webhooks
are known. A file with a Pod as the API server serves it (kubectl get pod -o yaml) is explained
like a running Pod. Names of SidecarSets restrict the answers to these.

It says what another program has changed of a sidecar after the injection, and which ConfigMaps and
Secrets a sidecar needs that the namespace lacks. Who may not read SidecarSets is told what the Pod
itself says.`,
		Example: `  kubectl sidecarset explain web-5d9c7 log-agent
  kubectl sidecarset explain deploy/web
  kubectl sidecarset explain -f deployment.yaml -s sidecarsets.yaml`,
		ValidArgsFunction: a.completeExplain,
		RunE: func(c *cobra.Command, args []string) error {
			return e.run(c.Context(), args)
		},
	}
	e.add(c, "manifests")
	c.Flags().StringVarP(&e.output, "output", "o", "", "`format`: json or yaml, with all SidecarSets")
	return c
}

// explanation is one run of the command.
type explanation struct {
	*app
	filesFlags
	output string

	client    client.Client // of the cluster that has the Pod; nil for manifests
	namespace string
	explain.Explainer
}

func (e *explanation) run(ctx context.Context, args []string) (err error) {
	if e.namespace, err = e.app.namespace(); err != nil {
		return err
	}
	var files []*manifest.File
	var unread error // of some files; the others are explained
	switch {
	case len(e.files) > 0:
		if files, err = e.read(e.app); len(files) > 0 {
			unread, err = err, nil
		}
	case len(args) == 0:
		err = errors.New("nothing to explain: name a Pod or a workload, such as deploy/web, or manifests with -f")
	default:
		files, err = e.get(ctx, args[0])
		args = args[1:]
	}
	if err != nil {
		return err
	}
	if e.client != nil {
		e.Exists = e.exists
	}
	one := e.explainObject
	err = e.readWorld(ctx, files, args)
	if why := err; apierrors.IsForbidden(why) && e.client != nil {
		one = func(ctx context.Context, o *manifest.Object) (*explain.Report, error) { return e.byRecord(ctx, o, why) }
	} else if err != nil {
		return err
	}
	var reports []*explain.Report
	var all []error
	for _, o := range objectsOf(files) {
		report, err := one(ctx, o)
		all = append(all, err)
		if report != nil {
			if len(args) > 0 {
				report.SidecarSets = slices.DeleteFunc(report.SidecarSets, func(a explain.Answer) bool { return !slices.Contains(args, a.SidecarSet) })
			}
			reports = append(reports, report)
		}
	}
	err = errors.Join(append(all, unread)...)
	switch {
	case len(reports) == 0 && err == nil:
		return errors.New("nothing here is a Pod or a workload with a Pod template")
	case e.output != "" && len(reports) > 0:
		return errors.Join(e.printAs(e.output, map[string]any{"reports": reports}), err)
	}
	for i, report := range reports {
		if i > 0 {
			fmt.Fprintln(e.Out)
		}
		e.print(report, len(args) > 0)
	}
	return err
}

// readWorld reads the SidecarSets, and what belongs to them. names are those that there have to be.
func (e *explanation) readWorld(ctx context.Context, files []*manifest.File, names []string) error {
	parts, err := e.parts(ctx, e.app, files)
	if err != nil {
		return err
	}
	if len(e.sidecarSets) == 0 {
		c, _, err := e.app.client()
		if err != nil {
			return err
		}
		if parts.Revisions, err = e.revisions(ctx, c, ""); err != nil {
			fmt.Fprintf(e.ErrOut, "warning: old revisions are not known: %v\n", err)
		}
	}
	e.World, e.Revisions = clusterview.New(*parts), parts.Revisions
	for _, name := range names {
		if !e.World.Snapshot.Has(name) && e.World.Unusable[name] == nil {
			return fmt.Errorf("there is no SidecarSet %q", name)
		}
	}
	return nil
}

// exists reports whether a ConfigMap or Secret is there, without reading what it holds.
func (e *explanation) exists(ctx context.Context, ref explain.Reference, namespace string) (bool, error) {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(ref.Kind))
	err := e.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, object)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// byRecord explains a Pod or a template without the SidecarSets, which the user may not read. why says so.
func (e *explanation) byRecord(ctx context.Context, o *manifest.Object, why error) (*explain.Report, error) {
	template, err := o.Template()
	if template == nil {
		e.noteHidden(o)
		return nil, err
	}
	object := &unstructured.Unstructured{Object: o.Value}
	report := &explain.Report{Namespace: e.namespace}
	if o.Kind != "Pod" {
		object, err = dryPod(ctx, e.client, e.namespace, o.Name, template.Pod())
	}
	status, refused := errors.AsType[*apierrors.StatusError](err)
	switch {
	case err == nil:
		pod := &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, pod); err != nil {
			return nil, o.Errorf("%w", err)
		}
		if report = e.Recorded(ctx, pod); len(report.SidecarSets) == 0 {
			report.Notes = append(report.Notes, "The Pod records no SidecarSet.")
		}
	case refused && !isUnasked(err):
		report.RefusedBy(status.Status().Message)
	default:
		report.Notes = append(report.Notes, notAsked+err.Error())
	}
	report.Kind, report.Name, report.Running = o.Kind, o.Name, o.Kind == "Pod"
	report.Notes = append(report.Notes, fmt.Sprintf("This is what the Pod itself says. You lack a right for the rest: %v. An administrator gives it by a ClusterRoleBinding, since SidecarSets belong to the cluster: kubectl create clusterrolebinding NAME --clusterrole=sidecarset-viewer --user=USER.", why))
	return report, nil
}

// get reads an object of the cluster.
func (e *explanation) get(ctx context.Context, argument string) ([]*manifest.File, error) {
	kind, name, typed := strings.Cut(argument, "/")
	if !typed {
		kind, name = "pod", argument
	}
	var err error
	if e.client, _, err = e.app.client(); err != nil {
		return nil, err
	}
	mapper, err := e.config.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	gvk, err := mapper.KindFor(schema.ParseGroupResource(strings.ToLower(kind)).WithVersion(""))
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("the cluster has no type %s; name a Pod, or a workload such as deploy/web", kind)
	} else if err == nil {
		object.SetGroupVersionKind(gvk)
		err = e.client.Get(ctx, types.NamespacedName{Namespace: e.namespace, Name: name}, object)
	}
	if err != nil {
		err = fmt.Errorf("reading %s/%s in namespace %s: %w", kind, name, e.namespace, err)
		if _, unknown := mapper.KindFor(schema.ParseGroupResource(strings.ToLower(name)).WithVersion("")); !typed && unknown == nil {
			err = fmt.Errorf("%w; type and name are one argument: %s/NAME", err, name)
		}
		return nil, err
	}
	text, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	file, err := manifest.Parse("", text)
	return []*manifest.File{file}, err
}

// explainObject explains a Pod or a template; the result is nil for other objects.
func (e *explanation) explainObject(ctx context.Context, o *manifest.Object) (report *explain.Report, err error) {
	template, err := o.Template()
	if template == nil {
		e.noteHidden(o)
		return nil, err
	}
	object := unstructured.Unstructured{Object: o.Value}
	var pod map[string]any
	if o.Kind == "Pod" && object.GetUID() != "" {
		live := object.DeepCopy()
		live.SetNamespace(cmp.Or(o.Namespace, e.namespace))
		report, err = e.Running(ctx, live.Object)
	} else {
		pod = template.Pod()
		report, err = e.Next(ctx, cmp.Or(o.Namespace, e.namespace), pod)
	}
	switch {
	case err != nil && e.client != nil:
		return nil, fmt.Errorf("%s: %w", o.Describe(), err)
	case err != nil:
		return nil, undecided(template, err)
	}
	report.Kind, report.Name = o.Kind, cmp.Or(o.Name, object.GetGenerateName()+"*")
	if e.client == nil {
		report.File = fmt.Sprintf("%s:%d", o.File(), o.Line())
	} else if !report.Running && len(e.sidecarSets) == 0 {
		e.try(ctx, report, pod)
	}
	return report, nil
}

// dryPod asks the API server to create the next Pod of a template in a dry run.
func dryPod(ctx context.Context, c client.Client, namespace, workload string, template map[string]any) (*unstructured.Unstructured, error) {
	pod := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(template)}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	pod.SetNamespace(namespace)
	pod.SetName("")
	pod.SetGenerateName(workload + "-")
	return pod, c.Create(ctx, pod, client.DryRunAll)
}

// isUnasked reports whether an error says that the API server could not be asked to create a Pod.
func isUnasked(err error) bool {
	return strings.Contains(err.Error(), `cannot create resource "pods"`) || strings.Contains(err.Error(), "does not support dry run")
}

const notAsked = "The API server was not asked to create the Pod in a dry run, so it is not known what it and other webhooks say: "

// try asks the API server to create the Pod in a dry run.
func (e *explanation) try(ctx context.Context, report *explain.Report, template map[string]any) {
	pod, err := dryPod(ctx, e.client, report.Namespace, report.Name, template)
	status, isStatus := errors.AsType[*apierrors.StatusError](err)
	switch {
	case err == nil:
		created := &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(pod.Object, created); err == nil { // API servers answer with Pods
			report.Created(created)
		}
	case !isStatus, isUnasked(err):
		report.Notes = append(report.Notes, notAsked+err.Error())
	default:
		report.RefusedBy(status.Status().Message)
	}
}

// nearMisses is how many SidecarSets that do not select the Pod are printed unasked.
const nearMisses = 5

// print prints a report for people. all: with each SidecarSet that does not select the Pod.
func (e *explanation) print(r *explain.Report, all bool) {
	paint := e.painter()
	headline := r.Kind + " " + r.Namespace + "/" + r.Name
	if r.File != "" {
		headline += " (" + r.File + ")"
	}
	if r.Refused != nil {
		headline += ": the Pod is refused by " + r.Refused.By
	}
	fmt.Fprintln(e.Out, paint.bold(headline))
	if r.Refused != nil {
		fmt.Fprintf(e.Out, "    %s\n", paint.red(r.Refused.Message))
	}
	for _, note := range r.Notes {
		fmt.Fprintf(e.Out, "    %s\n", paint.yellow(note))
	}
	others, near := 0, 0
	for i := range r.SidecarSets {
		a := &r.SidecarSets[i]
		if a.Decision == explain.NotSelected && !all {
			if near++; !a.Near || near > nearMisses {
				others++
				continue
			}
		}
		what := words[a.Decision]
		if a.Revision != "" {
			what.text += ", revision " + a.Revision
		}
		fmt.Fprintf(e.Out, "\n%s: %s\n", paint.bold(a.SidecarSet), what.paint(paint, what.text))
		for _, m := range a.Mismatches {
			fmt.Fprintf(e.Out, "    %s\n", m)
		}
		for _, because := range a.Reasons {
			fmt.Fprintf(e.Out, "    %s\n", because)
		}
		for _, do := range a.Remedies {
			fmt.Fprintf(e.Out, "    %s %s\n", paint.bold("To do:"), do)
		}
	}
	if others > 0 {
		what := fmt.Sprintf("%d SidecarSets that select", others)
		if others == 1 {
			what = "1 SidecarSet that selects"
		}
		fmt.Fprintf(e.Out, "\n%s\n", paint.faint("Not shown: "+what+" other Pods; name one to see why."))
	}
}

// words say what a decision is.
var words = map[explain.Decision]struct {
	text  string
	paint func(painter, string) string
}{
	explain.Injects:           {"injected", painter.green},
	explain.NotReady:          {"selects it, but may not be injected", painter.red},
	explain.AlreadyInjected:   {"not injected, because the manifest says that it is injected already", painter.yellow},
	explain.Denied:            {"the Pod is refused because of it", painter.red},
	explain.PodDenied:         {"not injected, because the Pod is refused", painter.red},
	explain.Current:           {"injected, current", painter.green},
	explain.Outdated:          {"injected, outdated", painter.yellow},
	explain.Altered:           {"injected, and changed by another program", painter.red},
	explain.ByRecord:          {"injected, as the Pod records", painter.green},
	explain.Unverified:        {"claimed by the Pod, not verified", painter.red},
	explain.Uninjected:        {"not injected, although it selects the Pod", painter.red},
	explain.NoLongerSelected:  {"injected, but does not select the Pod any more", painter.yellow},
	explain.NoSuchSidecarSet:  {"injected, but there is no such SidecarSet", painter.yellow},
	explain.Paused:            {"not injected, paused", painter.yellow},
	explain.ReplacedByCanary:  {"not injected, a canary is in its place", painter.yellow},
	explain.MirrorPod:         {"not injected, static Pod", painter.yellow},
	explain.NamespaceExcluded: {"not injected, excluded namespace", painter.yellow},
	explain.NotSelected:       {"does not select it", painter.faint},
	explain.Unusable:          {"cannot be used", painter.red},
	explain.Unknown:           {"not known", painter.yellow},
}

// completeExplain completes the name of a Pod, and then names of SidecarSets.
func (a *app) completeExplain(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if files, _ := c.Flags().GetStringSlice("filename"); len(args) > 0 || len(files) > 0 {
		return a.completeSidecarSets(c, args, prefix)
	}
	return a.names(c.Context(), corev1.SchemeGroupVersion.WithKind("Pod")), cobra.ShellCompDirectiveNoFileComp
}
