package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/explain"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/manifest"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/restart"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/internal/rollout"
)

func (a *app) rolloutRestart() *cobra.Command {
	var options restartOptions
	c := a.verb(&cobra.Command{
		Use:   "restart NAME",
		Short: "Restart the workloads whose Pods cannot be updated in place or lack sidecars",
		Long: `Restart the Deployments, StatefulSets and DaemonSets whose Pods cannot be updated in place or lack
sidecars, one workload after the other.

Of each workload one Pod is evicted first, one that is not Ready if there is one. The Pod in its
place has to have the current revision and to be Ready for sidecarset.io/min-ready-seconds. Then the
workload is restarted as kubectl rollout restart does, and its rollout is awaited. A Deployment with
one replica and maxSurge above 0 is restarted at once. The partition of the SidecarSet plays no part.
A workload with an outdated Pod that updateStrategy.selector leaves out is not restarted; it is named,
and --evict evicts its other Pods.

The command stops with code 1 if a new Pod fails: if it was Ready and is not any more, or shows a
reason of failure for a minute. It stops, too, if nothing moves for --timeout and the grace period.
Where budgets refuse the eviction for a minute, the workload is passed over; the code is then 1 at
the end. It is 1, too, if Pods need to be replaced and none of them can be. The command can be
interrupted at any time, and run again to go on.

It needs the rights to create pods/eviction, and to patch the workloads.`,
		Example: `  kubectl sidecarset rollout restart log-agent --dry-run
  kubectl sidecarset rollout restart log-agent`,
	}, func(ctx context.Context, c client.Client, name string, _ []string) error {
		return a.restart(ctx, c, name, &options)
	})
	flags := c.Flags()
	flags.DurationVar(&options.timeout, "timeout", 10*time.Minute, "how long nothing may move in a workload, in addition to the grace period of its Pods")
	flags.BoolVar(&options.evict, "evict", false, "evict Pods that another controller replaces, and Pods of workloads that cannot be restarted, one by one")
	addDryRun(c, &options.dry)
	flags.Lookup("dry-run").Usage = "list what would be restarted; `mode` is none or client"
	return c
}

type restartOptions struct {
	timeout time.Duration
	evict   bool
	dry     string
}

// restart finds and restarts the workloads of a SidecarSet.
func (a *app) restart(ctx context.Context, c client.Client, name string, options *restartOptions) error {
	if options.timeout <= 0 {
		return errors.New("--timeout is above 0")
	}
	if !slices.Contains([]string{"none", "client"}, options.dry) {
		return fmt.Errorf("--dry-run is %q; write none or client", options.dry)
	}
	_, config, err := a.client()
	if err != nil {
		return err
	}
	p := &planner{app: a, client: c}
	if p.resizes, err = resizes(config); err != nil {
		return err
	}
	judge, err := p.judge(ctx, name)
	if err != nil {
		return err
	}
	pods, err := p.pods(ctx, []*inject.Compiled{judge.Compiled})
	if err != nil {
		return err
	}
	survey, err := restart.Find(ctx, c, judge, pods, options.evict)
	if err != nil {
		return err
	}
	todo := a.printSurvey(survey, name)
	switch {
	case options.dry != "none":
		return nil
	case len(todo) == 0 && len(survey.Workloads)+len(survey.Left) > 0:
		return errors.New("nothing was restarted, although Pods need it")
	case len(todo) == 0:
		return nil
	}
	missing, err := restart.MissingRights(ctx, c, todo)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("nothing was restarted: you may not %s", strings.Join(missing, "; "))
	}
	run := &restart.Run{
		Client: c, Judge: judge, MinReady: rollout.NewStrategy(judge.Compiled.Set).MinReady(), Timeout: options.timeout,
		Next: func(ctx context.Context, w *restart.Workload) (string, error) {
			set, err := typedSet(ctx, c, name)
			if err != nil {
				return "", err
			}
			if why, _ := restart.Stopped(set); why != "" {
				return "", errors.New(why)
			}
			if set.Generation != judge.Compiled.Set.Generation {
				return "", fmt.Errorf("SidecarSet %q was changed; run the command again", name)
			}
			return a.whyNextLacksIt(ctx, c, judge, w), nil
		},
		Say: func(w *restart.Workload, text string) {
			fmt.Fprintf(a.Out, "%s: %s\n", w, text)
		},
	}
	replaced, passed, err := run.All(ctx, todo)
	fmt.Fprintf(a.Out, "%d of %d workloads are done\n", len(replaced), len(todo))
	switch {
	case errors.Is(err, context.Canceled):
		return errors.New("interrupted; run the command again to go on")
	case err != nil:
		return fmt.Errorf("stopped at %w", err)
	case len(passed) > 0:
		var names []string
		for _, p := range passed {
			names = append(names, p.String()+": "+p.Why)
		}
		return fmt.Errorf("%d workloads were passed over; run the command again for them\n%s", len(passed), strings.Join(names, "\n"))
	}
	return nil
}

// readyWithin is how long a SidecarSet that was just edited may take to be Ready.
const readyWithin = 30 * time.Second

// judge waits until new Pods get the current revision of a SidecarSet, and reads what decides about
// its Pods.
func (p *planner) judge(ctx context.Context, name string) (*restart.Judge, error) {
	why := ""
	err := wait.PollUntilContextTimeout(ctx, time.Second, readyWithin, true, func(ctx context.Context) (bool, error) {
		set, err := typedSet(ctx, p.client, name)
		if err != nil {
			return false, err
		}
		var passes bool
		why, passes = restart.Stopped(set)
		return !passes, nil
	})
	if why != "" && (err == nil || wait.Interrupted(err)) {
		err = fmt.Errorf("no Pod of SidecarSet %q is replaced now: %s", name, why)
	}
	if err != nil {
		return nil, err
	}
	if err := p.read(ctx, nil); err != nil {
		return nil, err
	}
	w := clusterview.New(p.parts)
	compiled, usable := w.Snapshot.Get(name)
	if !usable {
		return nil, w.Unusable[name]
	}
	updater, err := explain.NewUpdater(w, compiled, revision.NewHistory(p.parts.Revisions, revision.Owner{Name: name, UID: compiled.Set.UID}))
	if err != nil {
		return nil, err
	}
	return &restart.Judge{World: w, Updater: updater, Resizes: p.resizes, Node: func(name string) (inplace.Node, error) { return p.node(ctx, name) }}, nil
}

// printSurvey says what is restarted and what is not, and returns the workloads to work on.
func (a *app) printSurvey(s *restart.Survey, name string) (todo []*restart.Workload) {
	paint := a.painter()
	var named []*restart.Workload
	for _, w := range s.Workloads {
		if w.Named == "" || w.Evict {
			todo = append(todo, w)
		} else {
			named = append(named, w)
		}
	}
	if len(todo) == 0 {
		fmt.Fprintf(a.Out, "SidecarSet %q has no workloads to restart\n", name)
	} else {
		fmt.Fprintln(a.Out, paint.bold("To restart:"))
	}
	for _, w := range todo {
		how := ""
		if w.Evict {
			how = ", one by one"
		}
		fmt.Fprintf(a.Out, "  %s: %s (%s)%s\n", w, podsText(w.Pods()), w.Why(), how)
		if w.Warning != "" && !w.Evict {
			fmt.Fprintln(a.Out, paint.yellow("    warning: "+w.Warning))
		}
	}
	if len(named) > 0 {
		fmt.Fprintln(a.Out, paint.bold("Not restarted (--evict evicts their Pods one by one):"))
	}
	for _, w := range named {
		fmt.Fprintf(a.Out, "  %s: %s (%s): %s\n", w, podsText(w.Pods()), w.Why(), w.Named)
	}
	if len(s.Left) > 0 {
		fmt.Fprintln(a.Out, paint.bold("Pods that stay as they are:"))
	}
	for i, left := range s.Left {
		if i == 20 {
			fmt.Fprintf(a.Out, "  %d more\n", len(s.Left)-i)
			break
		}
		fmt.Fprintf(a.Out, "  %s/%s: %s\n", left.Pod.Namespace, left.Pod.Name, left.Why)
	}
	return todo
}

// whyNextLacksIt asks the API server in a dry run for the next Pod of a workload, and says why that Pod
// would not get the revision; "" if it would, or if that is not known.
func (a *app) whyNextLacksIt(ctx context.Context, c client.Client, judge *restart.Judge, w *restart.Workload) string {
	if w.Object == nil {
		return ""
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(w.Object)
	if err != nil {
		return ""
	}
	object["apiVersion"], object["kind"] = "apps/v1", w.Kind
	text, err := json.Marshal(object)
	if err != nil {
		return ""
	}
	file, err := manifest.Parse("", text)
	if err != nil {
		return ""
	}
	o := file.Documents[0].Objects()[0]
	template, err := o.Template()
	if template == nil || err != nil {
		return ""
	}
	made, err := dryPod(ctx, c, w.Namespace, w.Name, template.Pod())
	status, isStatus := errors.AsType[*apierrors.StatusError](err)
	switch {
	case err != nil && (!isStatus || isUnasked(err) || strings.Contains(err.Error(), "exceeded quota")): // an evicted Pod makes room
		return ""
	case err != nil:
		return "its next Pod would be refused: " + status.Status().Message
	}
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(made.Object, pod); err != nil || judge.Has(pod) {
		return ""
	}
	return fmt.Sprintf("its next Pod would not get the current revision of SidecarSet %s; kubectl sidecarset explain %s/%s -n %s says why", judge.Compiled.Name(), strings.ToLower(w.Kind), w.Name, w.Namespace)
}
