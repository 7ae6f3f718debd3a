package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/members"
	"github.com/sidecarset/operator/internal/podstate"
)

// Next explains what becomes of the next Pod of a template, which has metadata and spec. The
// caller fills in what the Report says about the object.
func (e *Explainer) Next(ctx context.Context, namespace string, template map[string]any) (*Report, error) {
	s, err := e.look(ctx, namespace, template)
	if err != nil {
		return nil, err
	}
	for _, edit := range s.decision.Plan.Insertions {
		if edit.List == inject.Containers || edit.List == inject.InitContainers {
			s.adds[edit.SidecarSet] = append(s.adds[edit.SidecarSet], edit.Name)
		}
	}
	r := &Report{Namespace: namespace, Notes: s.clients(), adds: s.adds, plan: s.decision.Plan}
	for _, c := range slices.Concat(s.decision.Pod.InitContainers, s.decision.Pod.Containers) {
		r.own = append(r.own, c.Name)
	}
	if s.decision.Refused != nil {
		r.Refused = &Refusal{"the operator's webhook", s.decision.Refused.Error()}
	}
	r.SidecarSets = s.answers(s.next)
	if s.decision.Refused != nil {
		return r, nil //nolint:nilerr // a refusal is a decision
	}
	if r.injected, err = injectedPod(template, &s.decision); err != nil {
		return nil, err
	}
	for i := range r.SidecarSets {
		if a := &r.SidecarSets[i]; a.Decision == Injects || a.Decision == NotReady {
			e.lacking(ctx, r.injected, namespace, s.adds[a.SidecarSet], a)
		}
	}
	return r, nil
}

// next answers for the next Pod.
func (s *subject) next(p *inject.Compiled, selected bool) Answer {
	if !selected {
		return Answer{Decision: NotSelected}
	}
	if a, is := s.skipped(p); is {
		return a
	}
	name, plan := p.Name(), &s.decision.Plan
	if slices.ContainsFunc(plan.Skipped, func(skip inject.Skip) bool { return skip.SidecarSet == name }) {
		return Answer{
			Decision: AlreadyInjected, Revision: s.record.Revision(name),
			Reasons:  []string{"The annotations and containers in the manifest say that the Pod has this revision, as in a copy of a running Pod. The webhook leaves it alone."},
			Remedies: []string{"Remove the annotations kruise.io/sidecarset-* and the sidecars from the manifest, or annotate the SidecarSet with " + appsv1beta1.AnnotationEnforce + ": \"true\"."},
		}
	}
	if err := s.decision.Refused; err != nil {
		if refusal, is := errors.AsType[inject.Refusal](err); is && slices.Contains(refusal.SidecarSets(), name) {
			return Answer{Decision: Denied}
		}
		return Answer{Decision: PodDenied}
	}
	a := Answer{Decision: Injects, Revision: podstate.ParseHashes(plan.Annotations[appsv1beta1.AnnotationHash]).Revision(name)}
	if len(s.adds[name]) > 0 {
		a.Reasons = append(a.Reasons, "Brings container "+strings.Join(s.adds[name], ", ")+".")
	}
	if slices.Contains(plan.HeldBack, name) {
		a.Reasons = append(a.Reasons, fmt.Sprintf("New Pods get %s, because too few running Pods are available with %s (%s: %s).", a.Revision, p.Revision(), appsv1beta1.AnnotationNewPods, appsv1beta1.StableNewPods))
	} else if ref, names := p.Refers(); names && !p.IsHeld() {
		a.Reasons = append(a.Reasons, fmt.Sprintf("spec.injectionStrategy.revision injects %s (policy %s).", ref, cmp.Or(p.Set.Spec.InjectionStrategy.Revision.Policy, appsv1beta1.AlwaysSidecarSetInjectRevisionPolicy)))
	}
	if slices.Contains(plan.Replaces, name) {
		a.Reasons = append(a.Reasons, "The manifest records another revision of it, which is replaced.")
	}
	for _, warning := range plan.Warnings {
		if warning.SidecarSet == name {
			a.Reasons = append(a.Reasons, sentence(warning.Text))
		}
	}
	if problem := inForce(p.Set); problem != "" {
		a.Decision = NotReady
		a.Reasons = append(a.Reasons, problem, onFailure(p.Set))
		a.Remedies = []string{"kubectl describe sidecarset " + name + "; docs/troubleshooting.md#ready-is-false has what to do for each reason."}
	}
	a.Reasons = append(a.Reasons, required(p.Set)...)
	return a
}

// onFailure says what happens to Pods if no replica can be called.
func onFailure(set *appsv1beta1.SidecarSet) string {
	if set.Annotations[appsv1beta1.AnnotationFailurePolicy] == "Ignore" {
		return "If no replica answers, Pods are created without it (" + appsv1beta1.AnnotationFailurePolicy + ": Ignore)."
	}
	return "If no replica answers, Pods are refused (" + appsv1beta1.AnnotationFailurePolicy + ": Fail)."
}

// refuser is who refuses a Pod, in a message of the API server.
var refuser = regexp.MustCompile(`webhook "[^"]+"|ValidatingAdmissionPolicy '[^']+'|PodSecurity "[^"]+"|(?:exceeded|failed) quota: [^,:]+`)

// RefusedBy notes that the API server does not create the Pod, with its message, which names who
// refuses. If the message is about a container that a SidecarSet brings, the answer about that
// SidecarSet says so.
func (r *Report) RefusedBy(message string) {
	if r.Refused != nil && strings.Contains(message, r.Refused.Message) {
		return
	}
	by := cmp.Or(refuser.FindString(message), "the API server")
	if _, quota, is := strings.Cut(by, " quota: "); is {
		by = "ResourceQuota " + quota
	}
	if strings.Contains(message, "failed calling webhook") && strings.Contains(by, ".pods.sidecarset.io") {
		by = "the API server, which cannot call the operator: kubectl sidecarset doctor says more"
	}
	r.Refused = &Refusal{by, message}
	for i := range r.SidecarSets {
		a := &r.SidecarSets[i]
		if a.Decision != Injects && a.Decision != NotReady {
			continue
		}
		a.Decision = PodDenied
		if edits := r.plan.Named(message); slices.ContainsFunc(edits, func(e inject.Edit) bool { return e.SidecarSet == a.SidecarSet }) {
			a.Decision = Denied
			for _, e := range edits {
				if e.SidecarSet == a.SidecarSet {
					a.Reasons = append(a.Reasons, fmt.Sprintf("The refusal is about %s %q, which this SidecarSet brings.", members.Element(string(e.List)), e.Name))
				}
			}
			a.Remedies = append(a.Remedies, "Change it in the SidecarSet, or the field of the Pod that the refusal is about; or leave this Pod out in the SidecarSet's selector.")
			continue
		}
		about := func(name string) bool { return isAbout(message, name) }
		if at := slices.IndexFunc(r.adds[a.SidecarSet], about); at >= 0 {
			a.Decision = Denied
			a.Reasons = append(a.Reasons, fmt.Sprintf("The refusal is about container %q, which this SidecarSet brings.", r.adds[a.SidecarSet][at]))
			a.Remedies = append(a.Remedies, "Change that container of the SidecarSet, or "+by+".")
			if at := slices.IndexFunc(r.own, about); at >= 0 {
				a.Reasons = append(a.Reasons, fmt.Sprintf("It is about the Pod's own container %q, too.", r.own[at]))
			}
		}
	}
}

// isAbout reports whether a refusal names a container. Quotas list names without quotation marks.
func isAbout(message, container string) bool {
	_, listed, _ := strings.Cut(message, "must specify ")
	return strings.Contains(message, `"`+container+`"`) ||
		slices.Contains(strings.FieldsFunc(listed, func(r rune) bool { return strings.ContainsRune(" ,;", r) }), container)
}

// Created compares the answers with the Pod that the API server would create.
func (r *Report) Created(pod *corev1.Pod) {
	listed := podstate.ParseInjectedList(pod.Annotations[appsv1beta1.AnnotationInjectedList])
	for i := range r.SidecarSets {
		a := &r.SidecarSets[i]
		if a.Decision == NotReady && slices.Contains(listed, a.SidecarSet) {
			a.Reasons = append(a.Reasons, "But a dry run of the API server did get it just now.")
		}
		if a.Decision == Injects && len(r.adds[a.SidecarSet]) > 0 && !slices.Contains(listed, a.SidecarSet) {
			a.Decision = NotReady
			a.Reasons = append(a.Reasons, "But a dry run of the API server returned the Pod without it: the API server did not call the operator, or the operator excludes the namespace.")
			a.Remedies = append(a.Remedies, "Look at the operator's Pods, and at the webhooks in MutatingWebhookConfigurations sidecarset-pods-*.")
		}
		if r.injected == nil || !slices.Contains(listed, a.SidecarSet) {
			continue
		}
		var said []string
		for _, name := range r.adds[a.SidecarSet] {
			want, _ := find(r.injected, name)
			said = append(said, altered(want, pod)...)
		}
		if len(said) > 0 {
			a.Decision, a.Reasons, a.Remedies = Altered, append(a.Reasons, said...), append(a.Remedies, findTheProgram)
		}
	}
}
