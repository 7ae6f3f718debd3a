package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/status"
)

// progress remembers when the rollout of each SidecarSet last moved. It is safe for
// concurrent use.
type progress struct {
	mu    sync.Mutex
	known map[string]moving
}

type moving struct {
	uid types.UID
	status.Progress
}

func newProgress() *progress { return &progress{known: make(map[string]moving)} }

// observe returns when a rollout last moved, given what is seen of it now and the
// stored status.
func (p *progress) observe(sidecarSet string, uid types.UID, seen status.Observation, before appsv1beta1.SidecarSetStatus) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.known[sidecarSet]
	if m.uid != uid {
		m = moving{uid: uid}
	}
	moved := m.Observe(seen, before)
	p.known[sidecarSet] = m
	return moved
}

func (p *progress) forget(sidecarSet string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, sidecarSet)
}
