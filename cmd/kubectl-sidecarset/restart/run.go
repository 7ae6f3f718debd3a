package restart

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubectl/pkg/polymorphichelpers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/podstate"
)

// Run replaces the Pods of workloads.
type Run struct {
	Client client.Client
	Judge  *Judge
	// MinReady is how long a new Pod has to be Ready, and Timeout how long nothing may move,
	// in addition to the grace period of the old Pods.
	MinReady, Timeout time.Duration
	// Next is asked before Pods of a workload are replaced. It says why the next Pod would not get
	// the revision; "" if it would, or if that is not known. An error stops the run.
	Next func(ctx context.Context, w *Workload) (why string, err error)
	// Say is told what happens.
	Say func(w *Workload, text string)
}

// Passed is a workload that was passed over, and why.
type Passed struct {
	*Workload
	Why string
}

// All replaces the Pods of workloads, one workload after the other. It ends with the first error.
func (r *Run) All(ctx context.Context, workloads []*Workload) (replaced []*Workload, passed []Passed, err error) {
	for i, w := range workloads {
		r.Say(w, fmt.Sprintf("begun, %d of %d workloads", i+1, len(workloads)))
		why, err := r.one(ctx, w)
		switch {
		case err != nil:
			return replaced, passed, fmt.Errorf("%s: %w", w, err)
		case why != "":
			passed = append(passed, Passed{w, why})
			r.Say(w, "passed over: "+why)
		default:
			replaced = append(replaced, w)
		}
	}
	return replaced, passed, nil
}

// one replaces the Pods of one workload. passed says why the workload was passed over; "" if it was
// not.
func (r *Run) one(ctx context.Context, w *Workload) (passed string, err error) {
	j := &job{Run: r, w: w, owners: Owners{Client: r.Client}, watch: watch{minReady: r.MinReady, has: r.Judge.Has}}
	if passed, err = j.settle(ctx); passed != "" || err != nil {
		return passed, err
	}
	for tried := false; ; tried = true {
		todo, err := j.needing(ctx)
		if err != nil {
			return "", err
		}
		if len(todo) == 0 {
			j.say("no Pod needs to be replaced any more")
			return "", nil
		}
		if passed, err := r.Next(ctx, w); passed != "" || err != nil {
			return passed, err
		}
		if !w.Evict && (tried || surges(w.Object)) {
			return j.restart(ctx)
		}
		if passed, err := j.try(ctx); passed != "" || err != nil {
			return passed, err
		}
	}
}

// job is the work on one workload.
type job struct {
	*Run
	w      *Workload
	owners Owners
	watch  watch
	said   string
}

// say tells what happens, each thing once.
func (j *job) say(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); text != j.said {
		j.said = text
		j.Say(j.w, text)
	}
}

// pods lists the Pods of the workload that are not being deleted, the newest first.
func (j *job) pods(ctx context.Context) (pods []*corev1.Pod, err error) {
	selector := j.Judge.Compiled.Selector
	if spec := specOf(j.w.Object); spec != nil {
		if selector, err = metav1.LabelSelectorAsSelector(spec.selector); err != nil {
			return nil, err
		}
	}
	var list corev1.PodList
	if err := j.Client.List(ctx, &list, client.InNamespace(j.w.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, fmt.Errorf("listing its Pods: %w", err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		owner, err := j.owners.Of(ctx, pod)
		if err != nil {
			return nil, err
		}
		if owner != nil && owner.UID == j.w.UID && pod.DeletionTimestamp == nil {
			pods = append(pods, pod)
		}
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	return pods, nil
}

// needing lists the Pods that still need to be replaced, the newest first.
func (j *job) needing(ctx context.Context) (todo []*corev1.Pod, err error) {
	pods, err := j.pods(ctx)
	for _, pod := range pods {
		need, err := j.Judge.Needs(ctx, pod)
		if err != nil {
			return nil, err
		}
		if need.Reason != "" && need.Stays == "" && !(j.w.Evict && isProtected(pod)) {
			todo = append(todo, pod)
		}
	}
	return todo, err
}

const (
	// often is how often Pods are looked at.
	often = 2 * time.Second
	// budgetPatience is how long budgets may refuse evictions.
	budgetPatience = time.Minute
	// mostFailures is how many requests in a row may fail.
	mostFailures = 10
)

// poll calls see until it is done. see says what it waits for, which changes with what moves. stuck
// is that text if nothing has moved for the timeout and the grace period of the workload's Pods.
func (j *job) poll(ctx context.Context, see func() (done bool, waits string, err error)) (stuck string, err error) {
	limit := max(j.Timeout, j.MinReady) + graceOf(j.w.Object)
	last, since, failures := "", time.Now(), 0
	for {
		done, waits, err := see()
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case err != nil && failures < mostFailures && isPassing(err):
			failures++
			j.say("trying again: %v", err)
		case err != nil || done:
			return "", err
		case waits != last:
			last, since, failures = waits, time.Now(), 0
			j.say("%s", waits)
		default:
			failures = 0
		}
		if time.Since(since) >= limit {
			return fmt.Sprintf("nothing has moved for %s (--timeout and the grace period): %s", limit, last), nil
		}
		if err := sleep(ctx, often); err != nil {
			return "", err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// isPassing reports whether an error is one of a request that may succeed when it is made again.
func isPassing(err error) bool {
	if _, is := errors.AsType[*apierrors.StatusError](err); is {
		return apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err)
	}
	_, is := errors.AsType[*url.Error](err)
	return is
}

// errDeleted is the error of a workload that is not there any more.
var errDeleted = errors.New("it was deleted")

// rolledOut reads the workload, and reports whether kubectl rollout status would end. failed says why the
// rollout does not continue; "" if it does.
func (j *job) rolledOut(ctx context.Context) (done bool, says, failed string, err error) {
	err = j.Client.Get(ctx, client.ObjectKeyFromObject(j.w.Object), j.w.Object)
	if apierrors.IsNotFound(err) || err == nil && j.w.Object.GetUID() != j.w.UID {
		return false, "", "", errDeleted
	}
	if err != nil {
		return false, "", "", fmt.Errorf("reading it: %w", err)
	}
	viewer, err := polymorphichelpers.StatusViewerFor(schema.GroupKind{Group: appsv1.GroupName, Kind: j.w.Kind})
	if err != nil {
		return false, "", "", err
	}
	revision, err := runtime.DefaultUnstructuredConverter.ToUnstructured(j.w.Object)
	if err != nil {
		return false, "", "", err
	}
	says, done, problem := viewer.Status(&unstructured.Unstructured{Object: revision}, 0)
	if problem != nil {
		failed = problem.Error()
	}
	return done && problem == nil, strings.TrimSpace(says), failed, nil
}

// settle waits for a rollout of the workload that is under way, such as that of an earlier run. It
// does not wait if the newest Pod needs to be replaced, too: the rollout may never end then.
func (j *job) settle(ctx context.Context) (passed string, err error) {
	if j.w.Object == nil || j.w.Evict {
		return "", nil
	}
	stuck, err := j.poll(ctx, func() (bool, string, error) {
		done, says, failed, err := j.rolledOut(ctx)
		if err != nil || done {
			return done, says, err
		}
		if passed = notRestarted(j.w.Object); passed != "" {
			return true, "", nil
		}
		pods, err := j.pods(ctx)
		if err != nil {
			return false, "", err
		}
		if len(pods) > 0 {
			need, err := j.Judge.Needs(ctx, pods[0])
			if err != nil || need.Reason != "" {
				return err == nil, "", err
			}
		}
		passed = failed
		return failed != "", "waiting for its own rollout: " + says, nil
	})
	if errors.Is(err, errDeleted) {
		return err.Error(), nil
	}
	if passed == "" {
		passed = stuck
	}
	return passed, err
}

// try evicts one Pod, and waits until its replacement was Ready for long enough.
func (j *job) try(ctx context.Context) (passed string, err error) {
	before, err := j.pods(ctx)
	if err != nil {
		return "", err
	}
	victim, passed, err := j.evict(ctx)
	if victim == nil {
		return passed, err
	}
	j.say("evicted Pod %s; waiting for its replacement", victim.Name)
	problem, err := j.awaitNew(ctx, before, func(all []*corev1.Pod) (bool, string, string, error) {
		replaced := slices.ContainsFunc(all, func(pod *corev1.Pod) bool { return j.inPlaceOf(victim, pod) })
		return replaced, "Pod " + victim.Name + " has no replacement yet", "", nil
	})
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("interrupted after Pod %s was evicted; run the command again to go on: %w", victim.Name, ctx.Err())
	case problem != "":
		return "", j.stopped("%s. Pod %s was evicted for it, and no other Pod after that", problem, victim.Name)
	}
	return "", err
}

// awaitNew waits until there are enough new Pods in addition to those before, and all of these were Ready for long
// enough. enough says what is waited for, or why there will not be enough. problem says why the wait is over
// without them.
func (j *job) awaitNew(ctx context.Context, before []*corev1.Pod, enough func(all []*corev1.Pod) (is bool, waits, problem string, err error)) (problem string, err error) {
	stuck, err := j.poll(ctx, func() (bool, string, error) {
		all, err := j.pods(ctx)
		if err != nil {
			return false, "", err
		}
		all = slices.DeleteFunc(all, func(pod *corev1.Pod) bool {
			return slices.ContainsFunc(before, func(old *corev1.Pod) bool { return old.UID == pod.UID })
		})
		is, waits, why, err := enough(all)
		if err != nil {
			return false, "", err
		}
		if is {
			waits = ""
		}
		for _, pod := range all {
			switch how, text := j.watch.look(pod, time.Now()); how {
			case waiting:
				waits = strings.TrimPrefix(waits+"; Pod "+pod.Name+" "+text, "; ")
			case failed:
				why = cmp.Or(why, "its new Pod "+pod.Name+" "+text)
			case available:
			}
		}
		if problem = why; problem != "" {
			return true, "", nil
		}
		if waits == "" {
			for _, pod := range all[:min(1, len(all))] {
				j.say("its new Pods, such as %s, have the current revision and were Ready for %s", pod.Name, j.MinReady)
			}
		}
		return waits == "", waits, nil
	})
	return cmp.Or(problem, stuck), err
}

// evict evicts one of the Pods that need to be replaced, and returns it; nil if there is none any
// more, or if the workload is passed over. A Pod that is not Ready is tried first: it costs nothing.
func (j *job) evict(ctx context.Context) (victim *corev1.Pod, passed string, err error) {
	refused := "no Pod could be evicted"
	for until := time.Now().Add(budgetPatience); ; {
		todo, err := j.needing(ctx)
		if err != nil || len(todo) == 0 {
			return nil, "", err
		}
		candidates := candidatesOf(todo)
		if len(candidates) == 0 {
			return nil, fmt.Sprintf("annotations of its Pods, such as %s, forbid to evict any of them", todo[0].Name), nil
		}
		for _, pod := range candidates {
			err := j.Client.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{ // package drain of kubectl wants a client of all kinds: 5 MB
				ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
				DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
			})
			switch {
			case err == nil:
				return pod, "", nil
			case ctx.Err() != nil:
				return nil, "", ctx.Err()
			case apierrors.IsNotFound(err), apierrors.IsConflict(err): // it was replaced meanwhile
			case isPassing(err): // 429: a budget refuses it; 500: two budgets select it
				refused = fmt.Sprintf("Pod %s cannot be evicted: %v", pod.Name, err)
				j.say("trying for %s: %s", budgetPatience, refused)
			default:
				return nil, fmt.Sprintf("Pod %s cannot be evicted: %v", pod.Name, err), nil
			}
		}
		if !time.Now().Before(until) {
			return nil, fmt.Sprintf("%s (for %s)", refused, budgetPatience), nil
		}
		if err := sleep(ctx, often); err != nil {
			return nil, "", err
		}
	}
}

// candidatesOf are the Pods that may be tried: the first that is not Ready and the first that is.
func candidatesOf(todo []*corev1.Pod) (candidates []*corev1.Pod) {
	for _, ready := range []bool{false, true} {
		at := slices.IndexFunc(todo, func(pod *corev1.Pod) bool { return !isProtected(pod) && podstate.IsPodReady(pod) == ready })
		if at >= 0 {
			candidates = append(candidates, todo[at])
		}
	}
	return candidates
}

// inPlaceOf reports whether a new Pod of the workload replaces one that was evicted.
func (j *job) inPlaceOf(victim, pod *corev1.Pod) bool {
	switch j.w.Kind {
	case "StatefulSet":
		return pod.Name == victim.Name
	case "DaemonSet":
		return pod.Spec.NodeName == victim.Spec.NodeName
	}
	return true
}

// restart restarts the workload as kubectl rollout restart does, and waits until its new Pods were
// Ready for long enough.
func (j *job) restart(ctx context.Context) (passed string, err error) {
	pods, err := j.pods(ctx)
	if err != nil {
		return "", err
	}
	before := j.w.Object.DeepCopyObject().(client.Object)
	if _, err := polymorphichelpers.ObjectRestarterFn(j.w.Object); err != nil {
		return err.Error(), nil //nolint:nilerr // it was paused meanwhile
	}
	if err := j.Client.Patch(ctx, j.w.Object, client.StrategicMergeFrom(before), client.FieldOwner("kubectl-rollout")); err != nil {
		return "", fmt.Errorf("restarting it: %w", err)
	}
	j.say("restarted")
	problem, err := j.awaitNew(ctx, pods, func([]*corev1.Pod) (bool, string, string, error) { return j.rolledOut(ctx) })
	switch {
	case errors.Is(err, errDeleted):
		return err.Error(), nil
	case problem != "":
		return "", j.stopped("%s. It was restarted, so as many of its Pods are replaced as its own limits allow", problem)
	case err != nil:
		return "", err
	}
	todo, err := j.needing(ctx)
	if err == nil && len(todo) > 0 {
		return fmt.Sprintf("%d of its Pods were not replaced, such as %s: another user or program took the restart back", len(todo), todo[0].Name), nil
	}
	return "", err
}

// stopped is the error of a workload whose new Pods fail.
func (j *job) stopped(format string, args ...any) error {
	name := j.Judge.Compiled.Name()
	return fmt.Errorf(format+".\nTo go on, correct SidecarSet %s or the app, and run the command again.\nTo undo, run kubectl sidecarset rollout undo %s, and the command again", append(args, name, name)...)
}

// workloadSpec is what the kinds of workloads have in common.
type workloadSpec struct {
	selector *metav1.LabelSelector
	template *corev1.PodTemplateSpec
}

func specOf(object client.Object) *workloadSpec {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return &workloadSpec{o.Spec.Selector, &o.Spec.Template}
	case *appsv1.StatefulSet:
		return &workloadSpec{o.Spec.Selector, &o.Spec.Template}
	case *appsv1.DaemonSet:
		return &workloadSpec{o.Spec.Selector, &o.Spec.Template}
	}
	return nil
}

// graceOf is the grace period of a workload's Pods.
func graceOf(object client.Object) time.Duration {
	if spec := specOf(object); spec != nil && spec.template.Spec.TerminationGracePeriodSeconds != nil {
		return time.Duration(*spec.template.Spec.TerminationGracePeriodSeconds) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}
