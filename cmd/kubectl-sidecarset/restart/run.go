package restart

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Run replaces the Pods of workloads.
type Run struct {
	Client client.Client
	Judge  *Judge
	// MinReady is how long a new Pod has to be Ready, and Timeout how long nothing may move,
	// beside the grace period of the old Pods.
	MinReady, Timeout time.Duration
	// Parallel is how many workloads are restarted at the same time.
	Parallel int
	// Next is asked before Pods of a workload are replaced. It says why the next Pod would not get
	// the content; "" if it would, or if that is not known. An error stops the run.
	Next func(ctx context.Context, w *Workload) (why string, err error)
	// Say is told what happens. It may be called by several goroutines.
	Say func(w *Workload, text string)

	judging sync.Mutex
}

// Passed is a workload that was passed over, and why.
type Passed struct {
	*Workload
	Why string
}

// passedOver is the error of a workload after which the others go on.
type passedOver string

func (p passedOver) Error() string { return string(p) }

// All replaces the Pods of workloads, one workload after the other. After an error no other
// workload is begun.
func (r *Run) All(ctx context.Context, workloads []*Workload) (replaced []*Workload, passed []Passed, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	var lock sync.Mutex
	next := 0
	for range max(1, r.Parallel) {
		group.Go(func() {
			for {
				lock.Lock()
				if next == len(workloads) || err != nil || ctx.Err() != nil {
					lock.Unlock()
					return
				}
				w := workloads[next]
				next++
				lock.Unlock()
				failure := r.one(ctx, w)
				lock.Lock()
				why, isPassed := errors.AsType[passedOver](failure)
				switch {
				case failure == nil:
					replaced = append(replaced, w)
				case isPassed:
					passed = append(passed, Passed{w, string(why)})
					r.Say(w, "passed over: "+string(why))
				case err == nil:
					err = fmt.Errorf("%s: %w", w, failure)
					cancel()
				default:
					r.Say(w, "not waited for any more")
				}
				lock.Unlock()
			}
		})
	}
	group.Wait()
	if err == nil {
		err = ctx.Err()
	}
	return replaced, passed, err
}

// one replaces the Pods of one workload.
func (r *Run) one(ctx context.Context, w *Workload) error {
	j := &job{Run: r, w: w, owners: Owners{Client: r.Client}, watch: watch{minReady: r.MinReady, has: r.Judge.Has}}
	if err := j.settle(ctx); err != nil {
		return err
	}
	for {
		todo, err := j.needing(ctx)
		if err != nil {
			return err
		}
		if len(todo) == 0 {
			j.say("no Pod needs to be replaced any more")
			return nil
		}
		if why, err := r.Next(ctx, w); err != nil {
			return err
		} else if why != "" {
			return passedOver(why)
		}
		if !w.Evict && (j.tried || surges(w.Object)) {
			return j.restart(ctx)
		}
		if err := j.try(ctx); err != nil {
			return err
		}
	}
}

// job is the work on one workload.
type job struct {
	*Run
	w      *Workload
	owners Owners
	watch  watch
	tried  bool // a replacement was proven
	said   string
	// waitsFor is the last new Pod that was seen and is not proven, and why; "" if there is none.
	waitsFor string
}

// say tells what happens, each thing once.
func (j *job) say(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); text != j.said {
		j.said = text
		j.Say(j.w, text)
	}
}

// pods lists the Pods of the workload that are not being deleted.
func (j *job) pods(ctx context.Context) (pods []*corev1.Pod, err error) {
	selector := j.Judge.Program.Selector
	if of := selectorOf(j.w.Object); of != nil {
		if selector, err = metav1.LabelSelectorAsSelector(of); err != nil {
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
	return pods, nil
}

// needing lists the Pods that still need to be replaced, those first that are to be tried first.
func (j *job) needing(ctx context.Context) (todo []*corev1.Pod, err error) {
	pods, err := j.pods(ctx)
	if err != nil {
		return nil, err
	}
	j.judging.Lock()
	defer j.judging.Unlock()
	for _, pod := range pods {
		reason, stays, err := j.Judge.Needs(ctx, pod)
		if err != nil {
			return nil, err
		}
		if reason != "" && stays == "" && !(j.w.Evict && isProtected(pod)) {
			todo = append(todo, pod)
		}
	}
	slices.SortStableFunc(todo, func(a, b *corev1.Pod) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	return todo, nil
}

const (
	// often and seldom are how often Pods are looked at: one, and all of a workload.
	often, seldom = time.Second, 2 * time.Second
	// budgetPatience is how long budgets may refuse evictions.
	budgetPatience = time.Minute
	// mostFailures is how many requests in a row may fail.
	mostFailures = 10
)

// poll calls see until it returns true. If nothing moved for the timeout and the grace period of
// the workload's Pods, it returns an error. see returns something that changes with what moves.
func (j *job) poll(ctx context.Context, every time.Duration, see func() (done bool, moved string, err error)) error {
	limit := j.Timeout + graceOf(j.w.Object)
	last, since, failures := "", time.Now(), 0
	for {
		done, moved, err := see()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && failures < mostFailures && isPassing(err):
			failures++
			j.say("trying again: %v", err)
		case err != nil || done:
			return err
		default:
			failures = 0
		}
		if err == nil && moved != last {
			last, since = moved, time.Now()
		}
		if time.Since(since) >= limit {
			return slow(fmt.Sprintf("nothing has moved for %s (--timeout and the grace period): %s", limit, cmp.Or(j.waitsFor, j.said)))
		}
		if err := sleep(ctx, every); err != nil {
			return err
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

// slow is the error of a workload for which nothing has moved.
type slow string

func (s slow) Error() string { return string(s) }

// isPassing reports whether an error is one of a request that may succeed when it is made again.
func isPassing(err error) bool {
	if _, is := errors.AsType[*apierrors.StatusError](err); is {
		return apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err)
	}
	_, is := errors.AsType[*url.Error](err)
	return is
}

// settle waits for a rollout of the workload that is under way, such as that of an earlier run. It
// does not wait if the newest Pod needs to be replaced, too: the rollout may never end then.
func (j *job) settle(ctx context.Context) error {
	if j.w.Object == nil || j.w.Evict {
		return nil
	}
	err := j.poll(ctx, seldom, func() (bool, string, error) {
		if err := j.read(ctx); err != nil {
			return false, "", err
		}
		if why := notRestarted(j.w.Object); why != "" {
			return false, "", passedOver(why)
		}
		done, says, err := rolledOut(j.w.Object)
		if done {
			return true, "", nil
		}
		todo, failure := j.needing(ctx)
		if failure != nil {
			return false, "", failure
		}
		pods, failure := j.pods(ctx)
		if failure != nil {
			return false, "", failure
		}
		if len(todo) > 0 && !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.CreationTimestamp.After(todo[0].CreationTimestamp.Time) }) {
			return true, "", nil
		}
		if err != nil {
			return false, "", passedOver(err.Error())
		}
		j.say("waiting for its own rollout: %s", says)
		return false, says, nil
	})
	if text, is := errors.AsType[slow](err); is {
		return passedOver(text)
	}
	return err
}

// read reads the workload.
func (j *job) read(ctx context.Context) error {
	err := j.Client.Get(ctx, client.ObjectKeyFromObject(j.w.Object), j.w.Object)
	if apierrors.IsNotFound(err) || err == nil && j.w.Object.GetUID() != j.w.UID {
		return passedOver("it was deleted")
	}
	if err != nil {
		return fmt.Errorf("reading it: %w", err)
	}
	return nil
}

// restart restarts the workload as kubectl rollout restart does, and waits until its new Pods are
// proven.
func (j *job) restart(ctx context.Context) error {
	old, err := j.known(ctx)
	if err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`, time.Now().Format(time.RFC3339))
	if err := j.Client.Patch(ctx, j.w.Object, client.RawPatch(types.MergePatchType, []byte(patch)), client.FieldOwner("kubectl-rollout")); err != nil {
		return fmt.Errorf("restarting it: %w", err)
	}
	j.say("restarted")
	err = j.poll(ctx, seldom, func() (bool, string, error) {
		if err := j.read(ctx); err != nil {
			return false, "", err
		}
		pods, err := j.pods(ctx)
		if err != nil {
			return false, "", err
		}
		isNew, isProven := 0, 0
		j.waitsFor = ""
		for _, pod := range pods {
			if old[pod.UID] {
				continue
			}
			isNew++
			switch how, why := j.watch.look(pod, time.Now()); how {
			case proven:
				isProven++
			case waiting:
				j.waitsFor = "Pod " + pod.Name + " " + why
			case failed:
				return false, "", j.stopped(fmt.Sprintf("its new Pod %s %s", pod.Name, why))
			}
		}
		done, says, err := rolledOut(j.w.Object)
		if err != nil {
			return false, "", j.stopped(err.Error())
		}
		if done && isProven == isNew {
			return true, "", nil
		}
		if done {
			says = fmt.Sprintf("%d of %d new Pods were Ready for %s", isProven, isNew, j.MinReady)
		}
		j.say("%s", says)
		return false, fmt.Sprint(says, isNew, isProven), nil
	})
	if text, is := errors.AsType[slow](err); is {
		return j.stopped(string(text))
	}
	if err != nil {
		return err
	}
	todo, err := j.needing(ctx)
	if err == nil && len(todo) > 0 {
		return passedOver(fmt.Sprintf("%d of its Pods were not replaced, such as %s: somebody has taken the restart back", len(todo), todo[0].Name))
	}
	if err == nil {
		j.say("all of its Pods carry the current content")
	}
	return err
}

// known are the Pods of the workload now.
func (j *job) known(ctx context.Context) (map[types.UID]bool, error) {
	pods, err := j.pods(ctx)
	known := map[types.UID]bool{}
	for _, pod := range pods {
		known[pod.UID] = true
	}
	return known, err
}

// stopped is the error of a workload that was restarted and whose new Pods fail.
func (j *job) stopped(why string) error {
	return errors.New(why + ". It was restarted, so as many of its Pods are replaced as its own limits allow" + j.goOn())
}

// goOn says what to do after the run has stopped.
func (j *job) goOn() string {
	name := j.Judge.Program.Name()
	return fmt.Sprintf(".\nTo go on, correct SidecarSet %s or the app, and run the command again.\nTo undo, run kubectl sidecarset rollout undo %s, and the command again", name, name)
}

func selectorOf(object client.Object) *metav1.LabelSelector {
	if spec := specOf(object); spec != nil {
		return spec.selector
	}
	return nil
}
