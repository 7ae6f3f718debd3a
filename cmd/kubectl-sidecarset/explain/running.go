package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/revision"
)

// running is a Pod that exists.
type running struct {
	*subject
	pod  *corev1.Pod // as if it were active
	seen *podstate.Summary
}

// Running explains a Pod that exists, as the API server serves it. As for Next, the caller fills in
// what the Report says about the object.
func (e *Explainer) Running(ctx context.Context, object map[string]any) (*Report, error) {
	pod := new(corev1.Pod)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, pod); err != nil {
		return nil, err
	}
	s, err := e.look(ctx, pod.Namespace, object)
	if err != nil {
		return nil, err
	}
	r := &Report{Namespace: pod.Namespace, Running: true, Notes: s.clients()}
	if !podstate.FromPod(pod).Active {
		r.Notes = append(r.Notes, "The Pod has finished or is being deleted: it counts in no status, and nothing updates it.")
		pod.DeletionTimestamp, pod.Status.Phase = nil, corev1.PodRunning
	}
	run := &running{s, pod, podstate.FromPod(pod)}
	if run.seen.TooLarge {
		return nil, errors.New("the Pod is too large for the operator, which counts it nowhere: shorten its labels and annotations (docs/reference/status.md)")
	}
	r.SidecarSets = append(run.deleted(), s.answers(func(p *inject.Compiled, selected bool) Answer { return run.answer(ctx, p, selected) })...)
	return r, nil
}

// deleted answers for SidecarSets that the Pod has and that do not exist.
func (r *running) deleted() (all []Answer) {
	for _, name := range r.listed {
		if !r.World.Snapshot.Has(name) && r.World.Unusable[name] == nil {
			if r.untouched() {
				a := r.claim()
				a.SidecarSet = name
				all = append(all, a)
				continue
			}
			all = append(all, Answer{
				SidecarSet: name, Decision: NoSuchSidecarSet, Revision: r.record.Revision(name),
				Reasons:  []string{"The Pod records it, and there is no SidecarSet of that name. The sidecars go on running, and nothing updates them."},
				Remedies: []string{"Recreate the Pod to remove them: " + r.renewal()},
			})
		}
	}
	return all
}

func (r *running) answer(ctx context.Context, p *inject.Compiled, selected bool) Answer {
	name := p.Name()
	revision := inplace.RevisionOf(p)
	count := revision.Count(r.seen, r.World.Now.Unix())
	a := Answer{Revision: r.record.Revision(name)}
	switch {
	case !selected && (slices.Contains(r.listed, name) || r.record.Has(name)) && r.untouched():
		return r.claim()
	case !selected && (slices.Contains(r.listed, name) || r.record.Has(name)):
		a.Decision = NoLongerSelected
		a.Reasons = []string{"The Pod has it, but the labels or selectors have changed since. Nothing updates the sidecars, and the Pod counts in no status."}
		a.Remedies = []string{"Restore the label or the selector, or recreate the Pod without the sidecars: " + r.renewal()}
	case !selected:
		a.Decision = NotSelected
	case count&inplace.Matched != 0:
		r.injected(p, count, &a)
		if why, sidecar := revision.Trouble(r.seen); why.IsFailure() {
			meaning, remedy := NotRunning(why.String())
			a.Reasons = append(a.Reasons, fmt.Sprintf("Its sidecar %s does not run (%s): %s.", sidecar, why, meaning))
			a.Remedies = append(a.Remedies, sentence(remedy))
		}
		r.lacking(ctx, r.pod, r.pod.Namespace, maps.Collect(r.record.Sidecars())[name], &a)
	default:
		if skip, is := r.skipped(p); is && skip.Decision != Paused {
			return skip
		}
		a.Decision = Uninjected
		r.lack(p, revision, &a)
	}
	return a
}

// untouched reports whether no container of the Pod says that it was injected.
func (r *running) untouched() bool {
	return !slices.ContainsFunc(slices.Concat(r.pod.Spec.InitContainers, r.pod.Spec.Containers), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == appsv1beta1.EnvInjected && e.Value == "true" })
	})
}

// claim answers for a SidecarSet that does not select a Pod without any sidecar, although the
// Pod's annotations name it.
func (r *running) claim() Answer {
	return Answer{
		Decision: Unverified, Reasons: []string{"The annotations of the Pod name it, but no container of the Pod was injected: another program wrote them, or they were copied."},
		Remedies: []string{"Remove the annotations kruise.io/sidecarset-* of the Pod."},
	}
}

// injected answers for a Pod that has the SidecarSet, by its record.
func (r *running) injected(p *inject.Compiled, count inplace.Count, a *Answer) {
	name := p.Name()
	hash := r.record.Hash(name)
	u, err := NewUpdater(r.World, p, revision.NewHistory(r.Revisions, revision.Owner{Name: name, UID: p.Set.UID}))
	known := false
	if err == nil {
		if recorded := u.Recorded(r.pod); recorded != nil {
			known, a.Revision = true, cmp.Or(a.Revision, recorded.Name)
		}
	}
	a.Decision = Unverified
	switch unmarked := r.unmarked(p); {
	case unmarked != "":
		a.Reasons = []string{fmt.Sprintf("The Pod lists it, but its container %q lacks %s=true, which every injected container has.", unmarked, appsv1beta1.EnvInjected)}
	case err == nil && r.isAltered(p, u, a):
		return
	case count&inplace.Updated != 0:
		a.Decision = Current
		return
	case hash == "":
		a.Reasons = []string{"The Pod lists it, but records no hash of what was injected."}
	case err == nil && len(u.History) > 0 && !known && hash != p.Hash && !r.older(p):
		a.Reasons = []string{fmt.Sprintf("The Pod records the hash %s, which neither the SidecarSet nor any of its recorded revisions has: another user or program wrote it, or the revision was deleted.", hash[:min(len(hash), 16)])}
	default:
		a.Decision = Outdated
		r.outdated(p, u, err, a)
		return
	}
	a.Remedies = []string{"Recreate the Pod: " + r.renewal(), "If users who create such Pods are not trusted, annotate the SidecarSet with " + appsv1beta1.AnnotationEnforce + ": \"true\"."}
}

// unmarked names a sidecar of the SidecarSet that does not say in the Pod that it was injected.
func (r *running) unmarked(p *inject.Compiled) string {
	for _, c := range slices.Concat(r.decision.Pod.InitContainers, r.decision.Pod.Containers) {
		if !c.Injected && slices.Contains(p.SidecarList, c.Name) {
			return c.Name
		}
	}
	return ""
}

// older reports whether the Pod was created before the SidecarSet.
func (r *running) older(p *inject.Compiled) bool {
	return r.pod.CreationTimestamp.Before(&p.Set.CreationTimestamp)
}

// outdated says what a rollout does to the Pod. err is why that is not known.
func (r *running) outdated(p *inject.Compiled, u *Updater, err error, a *Answer) {
	say := func(format string, args ...any) { a.Reasons = append(a.Reasons, fmt.Sprintf(format, args...)) }
	if r.older(p) {
		say("The Pod is older than the SidecarSet, and has the revision of a deleted one of the same name.")
	} else if p.Revision() != "" {
		say("The SidecarSet is at revision %s.", p.Revision())
	}
	if p.IsHeld() && a.Revision == p.Set.Status.StableRevision {
		say("New Pods get %s until enough running Pods are available with %s (%s: %s).", a.Revision, p.Revision(), appsv1beta1.AnnotationNewPods, appsv1beta1.StableNewPods)
	}
	var update inplace.Update
	var fields []string
	if err == nil {
		update, fields, err = u.Update(r.pod, nil, r.World.Now)
	}
	if err == nil && len(u.History) == 0 && u.Revision.Differs(r.seen) {
		err = errors.New("no revision of the SidecarSet was found")
	}
	if err != nil {
		say("What a rollout would do is not known: %v.", err)
		return
	}
	status, strategy := &p.Set.Status, &p.Set.Spec.UpdateStrategy
	reason, message := update.Verdict.Reason, update.Message
	for _, group := range status.BlockedPods { // what the leader has found out by writing
		if slices.Contains(group.First, r.pod.Namespace+"/"+r.pod.Name) {
			reason, message = inplace.Reason(group.Reason), group.Message
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(cmp.Or(strategy.Selector, &metav1.LabelSelector{}))
	progressing := meta.FindStatusCondition(status.Conditions, appsv1beta1.ConditionProgressing)
	switch {
	case strategy.Type == appsv1beta1.NotUpdateSidecarSetStrategyType:
		say("Running Pods are not updated: spec.updateStrategy.type is NotUpdate.")
		a.Remedies = []string{"Recreate the Pod: " + r.renewal()}
	case err == nil && !selector.Matches(r.labels):
		say("Rollouts leave the Pod out: spec.updateStrategy.selector does not select it.")
	case reason != "":
		meaning, remedy := Blocked(reason)
		say("A rollout does not update it (%s): %s.", reason, meaning)
		if len(fields) > 0 {
			say("Since then changed: %s.", strings.Join(fields, ", "))
		}
		if message != "" {
			say("%s", sentence(message))
		}
		switch {
		case remedy == "recreate the Pod":
			a.Remedies = []string{"Recreate the Pod: " + r.renewal()}
		default:
			a.Remedies = []string{sentence(remedy)}
		}
	case strategy.Paused:
		say("The rollout is paused: spec.updateStrategy.paused is true.")
		a.Remedies = []string{"Set it to false, if running Pods are to be updated."}
	case progressing != nil && progressing.Reason != appsv1beta1.ReasonComplete:
		say("A rollout updates it in place. It is %s: %s", progressing.Reason, sentence(progressing.Message))
	default:
		say("A rollout updates it in place.")
	}
}

// lack says why the Pod does not have a SidecarSet that selects it.
func (r *running) lack(p *inject.Compiled, revision *inplace.Revision, a *Answer) {
	why := revision.WhyUninjected(r.seen)
	created := r.pod.CreationTimestamp.UTC().Format(time.RFC3339)
	switch why {
	case appsv1beta1.ReasonOlderThanSidecarSet:
		a.Reasons = append(a.Reasons, fmt.Sprintf("The Pod (%s) is older than the SidecarSet (%s).", created, p.Set.CreationTimestamp.UTC().Format(time.RFC3339)))
	case appsv1beta1.ReasonSidecarsMissing:
		a.Reasons = append(a.Reasons, "The Pod lists it, but lacks "+cmp.Or(strings.Join(r.missing(p), ", "), "the record of a hot upgrade")+": another program wrote the list, or the sidecar was added to the SidecarSet later.")
	case appsv1beta1.ReasonRecordRemoved:
		a.Reasons = append(a.Reasons, "The Pod was injected, and the SidecarSet was removed from its annotation "+appsv1beta1.AnnotationInjectedList+".")
	default:
		a.Reasons = append(a.Reasons, fmt.Sprintf("The Pod was created (%s) without it.", created))
		a.Reasons = append(a.Reasons, r.clues(p)...)
	}
	// what a new Pod would get
	switch next := r.next(p, true); next.Decision {
	case Injects, AlreadyInjected:
		a.Remedies = append(a.Remedies, "Recreate the Pod: "+r.renewal())
	default:
		if next.Decision == PodDenied || next.Decision == Denied {
			next.Reasons = []string{sentence(r.decision.Refused.Error())}
		}
		a.Reasons = append(a.Reasons, fmt.Sprintf("A new Pod would not get it either (%s).", next.Decision))
		a.Reasons = append(a.Reasons, next.Reasons...)
		a.Remedies = append(append(a.Remedies, next.Remedies...), "After that, recreate the Pod: "+r.renewal())
	}
}

// missing are the sidecars that the Pod lacks.
func (r *running) missing(p *inject.Compiled) []string {
	return slices.DeleteFunc(slices.Clone(p.SidecarList), func(name string) bool {
		hot, _ := appsv1beta1.HotUpgradeNames(name)
		return podstate.Find(r.pod.Spec.Containers, name) != nil || podstate.Find(r.pod.Spec.InitContainers, name) != nil || podstate.Find(r.pod.Spec.Containers, hot) != nil
	})
}

// clues are what may have kept the SidecarSet from the Pod when it was created.
func (r *running) clues(p *inject.Compiled) (clues []string) {
	created := r.pod.CreationTimestamp
	if ready := meta.FindStatusCondition(p.Set.Status.Conditions, appsv1beta1.ConditionReady); ready != nil && created.Before(&ready.LastTransitionTime) {
		clues = append(clues, fmt.Sprintf("The SidecarSet's condition Ready changed after that (%s, now %s).", ready.LastTransitionTime.UTC().Format(time.RFC3339), ready.Status))
	}
	if p.Set.Annotations[appsv1beta1.AnnotationFailurePolicy] == "Ignore" {
		clues = append(clues, onFailure(p.Set))
	}
	if len(clues) == 0 {
		clues = []string{"The cause is not recorded: injection was paused, a label or a selector was changed later, or the API server did not call the operator. The audit log of the API server tells (docs/troubleshooting.md)."}
	}
	return clues
}

// renewal is the command that makes a new Pod, if that is known.
func (r *running) renewal() string {
	owner := metav1.GetControllerOf(r.pod)
	in := " -n " + r.pod.Namespace
	if owner == nil {
		return "nothing replaces it, so delete it and create it again from its manifest."
	}
	switch hash := r.pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; owner.Kind {
	case "ReplicaSet":
		if name, is := strings.CutSuffix(owner.Name, "-"+hash); is && hash != "" {
			return "kubectl rollout restart deployment/" + name + in
		}
	case "StatefulSet", "DaemonSet":
		return "kubectl rollout restart " + strings.ToLower(owner.Kind) + "/" + owner.Name + in
	case "Job":
		return "let it finish, and run the Job again."
	}
	return "kubectl delete pod/" + r.pod.Name + in
}
