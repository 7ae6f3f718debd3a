package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/status"
)

// progress remembers when the rollout of each SidecarSet last moved, and since when its
// content cannot be recorded. It is safe for concurrent use.
type progress struct {
	mu    sync.Mutex
	known map[string]moving
}

type moving struct {
	uid types.UID
	status.Progress
	unrecorded time.Time // since when its content cannot be recorded
}

func newProgress() *progress { return &progress{known: make(map[string]moving)} }

// observe returns when a rollout last made progress, given the current observation and
// the stored status.
func (p *progress) observe(sidecarSet string, uid types.UID, seen status.Observation, before appsv1beta1.SidecarSetStatus) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.of(sidecarSet, uid)
	moved := m.Observe(seen, before)
	p.known[sidecarSet] = m
	return moved
}

func (p *progress) of(sidecarSet string, uid types.UID) moving {
	if m := p.known[sidecarSet]; m.uid == uid {
		return m
	}
	return moving{uid: uid}
}

// recorded notes whether the content of a SidecarSet is recorded, and returns for how long
// it could not be.
func (p *progress) recorded(sidecarSet string, uid types.UID, is bool, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.of(sidecarSet, uid)
	switch {
	case is:
		m.unrecorded = time.Time{}
	case m.unrecorded.IsZero():
		m.unrecorded = now
	}
	p.known[sidecarSet] = m
	if is {
		return 0
	}
	return now.Sub(m.unrecorded)
}

func (p *progress) forget(sidecarSet string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, sidecarSet)
}
