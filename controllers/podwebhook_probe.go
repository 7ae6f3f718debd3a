package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/status"
)

// podProbe creates Pods under dry-run in a namespace that an administrator has
// set aside for it, and looks whether they are injected. It tries the whole way,
// other people's webhooks and policies included. It is used by one goroutine.
type podProbe struct {
	namespace string
	writer    client.Client
	results   map[types.UID]probeResult // by SidecarSet
}

type probeResult struct {
	generation int64
	at         time.Time
	problem    string // "" if the Pod was injected
}

const (
	// probeAgain is how long an injected Pod is proof; one that was not is tried
	// again with the next pass.
	probeAgain = 5 * time.Minute
	// probeTimeout bounds one attempt.
	probeTimeout = 10 * time.Second
)

// check says whether a SidecarSet that should be in force is: nil if a Pod got its
// sidecars, or if it selects none that could be made in the namespace.
func (p *podProbe) check(ctx context.Context, catalog *match.Catalog, program *inject.Program, now time.Time) *status.Readiness {
	set := program.Set
	sample, ok := p.sample(catalog, program)
	if !ok {
		return nil
	}
	known, ok := p.results[set.UID]
	if !ok || known.generation != set.Generation || known.problem != "" || now.Sub(known.at) >= probeAgain {
		known = probeResult{set.Generation, now, p.try(ctx, set.Name, sample)}
		p.results[set.UID] = known
	}
	if known.problem == "" {
		return nil
	}
	return new(no(appsv1beta1.ReasonProbeFailed, fmt.Sprintf("A Pod that is selected was tried in namespace %s, under dry-run: %s", p.namespace, known.problem)))
}

// forget drops what is known of SidecarSets that are gone.
func (p *podProbe) forget(programs []*inject.Program) {
	maps.DeleteFunc(p.results, func(uid types.UID, _ probeResult) bool {
		return !slices.ContainsFunc(programs, func(program *inject.Program) bool { return program.Set.UID == uid })
	})
}

// sample returns labels of a Pod in the namespace that a SidecarSet selects;
// false if there are none that are easy to find.
func (p *podProbe) sample(catalog *match.Catalog, program *inject.Program) (labels.Set, bool) {
	sample := sampleLabels(program.Set.Spec.Selector)
	selected, err := catalog.Select(p.namespace, sample, nil)
	if err != nil {
		return nil, false // the namespace does not exist
	}
	return sample, slices.Contains(selected, program)
}

// sampleLabels returns labels that a selector matches, if it is not contrived.
func sampleLabels(selector *metav1.LabelSelector) labels.Set {
	sample := labels.Set{}
	if selector == nil {
		return sample
	}
	maps.Copy(sample, selector.MatchLabels)
	for _, r := range selector.MatchExpressions {
		_, has := sample[r.Key]
		switch {
		case has:
		case r.Operator == metav1.LabelSelectorOpIn && len(r.Values) > 0:
			sample[r.Key] = r.Values[0]
		case r.Operator == metav1.LabelSelectorOpExists:
			sample[r.Key] = "probe"
		}
	}
	return sample
}

// try creates one Pod and says what is wrong with it.
func (p *podProbe) try(ctx context.Context, sidecarSet string, sample labels.Set) string {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, GenerateName: "sidecarset-probe-", Labels: sample},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(65532)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "sidecarset-probe", Image: "sidecarset-probe",
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		},
	}
	if err := p.writer.Create(ctx, pod, client.DryRunAll); err != nil {
		return err.Error()
	}
	if injected := podstate.ParseInjectedList(pod.Annotations[appsv1beta1.AnnotationInjectedList]); !slices.Contains(injected, sidecarSet) {
		return "it was created without the sidecars"
	}
	return ""
}
