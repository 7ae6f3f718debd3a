package entries

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/readiness"
	"github.com/sidecarset/operator/internal/sample"
	"github.com/sidecarset/operator/internal/status"
)

// podProbe creates Pods under dry-run in a namespace that the administrator has set aside
// for it, and looks whether they are injected. So it also tries the webhooks and policies of
// other programs. It tries one Pod at a time, and the leader's passes do not wait for it,
// because another webhook may take long to answer.
type podProbe struct {
	namespace string
	writer    client.Client
	done      func() // is called after each attempt

	turn chan struct{} // has capacity 1; full while an attempt is being made
	mu   sync.Mutex    // guards the results
}

// probeResult is what attempts for one SidecarSet have shown.
type probeResult struct {
	trying  bool      // an attempt is being made, or waits for its turn
	at      time.Time // when the last attempt ended; zero before
	problem string    // "" if the Pod was injected
}

const (
	// probeAgain is how long an injected Pod counts as proof. If a Pod was not injected, the
	// probe tries again after probePause.
	probeAgain = 5 * time.Minute
	probePause = 5 * time.Second
	// probeTimeout bounds one attempt.
	probeTimeout = 10 * time.Second
)

func newPodProbe(namespace string, writer client.Client, done func()) *podProbe {
	return &podProbe{namespace: namespace, writer: writer, done: done, turn: make(chan struct{}, 1)}
}

// check returns nil if a Pod got the sidecars of a SidecarSet, or if the SidecarSet selects
// no Pod that could be created in the namespace. Otherwise it says why the SidecarSet may
// not be in force. It does not wait: if an attempt is due, it is made until ctx ends.
func (p *podProbe) check(ctx context.Context, catalog *match.Snapshot, one *storedSet) *status.Readiness {
	podLabels, ok := p.sample(catalog, one.program)
	if !ok {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	known := &one.tried
	if age := time.Since(known.at); !known.trying && (age >= probeAgain || known.problem != "" && age >= probePause) {
		known.trying = true
		go p.attempt(ctx, one, podLabels)
	}
	switch {
	case known.at.IsZero():
		return readiness.Unsure(appsv1beta1.ReasonNotInForce, fmt.Sprintf("The operator is creating a selected Pod in namespace %s, under dry-run, to see whether it is injected.", p.namespace))
	case known.problem != "":
		return readiness.No(appsv1beta1.ReasonProbeFailed, fmt.Sprintf("The operator created a selected Pod in namespace %s, under dry-run: %s", p.namespace, known.problem))
	}
	return nil
}

// attempt tries a Pod when it is its turn, unless ctx ends before.
func (p *podProbe) attempt(ctx context.Context, one *storedSet, podLabels labels.Set) {
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-p.turn }()
	problem := p.try(ctx, one.program.Name(), podLabels)
	p.mu.Lock()
	one.tried = probeResult{at: time.Now(), problem: problem}
	p.mu.Unlock()
	p.done()
}

// sample returns labels of a Pod in the namespace that a SidecarSet selects; false if the
// namespace does not exist or is not selected, or if sample.Labels finds no such labels.
func (p *podProbe) sample(catalog *match.Snapshot, program *inject.Program) (labels.Set, bool) {
	podLabels := sample.Labels(program.Set.Spec.Selector)
	selection, err := catalog.Select(p.namespace, podLabels, nil)
	if err != nil {
		return nil, false // the namespace does not exist
	}
	return podLabels, slices.Contains(selection.Programs, program)
}

// try creates one Pod under dry-run and says why it is not injected; "" if it is.
func (p *podProbe) try(ctx context.Context, sidecarSet string, podLabels labels.Set) string {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	pod := sample.Pod(p.namespace, podLabels)
	if err := p.writer.Create(ctx, pod, client.DryRunAll); err != nil {
		return err.Error()
	}
	if injected := podstate.ParseInjectedList(pod.Annotations[appsv1beta1.AnnotationInjectedList]); !slices.Contains(injected, sidecarSet) {
		return "it was created without the sidecars"
	}
	return ""
}
