package rollout_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// image is what one content of the SidecarSet does to a Pod.
type image struct {
	resize  bool // it differs in resources alone: no container is restarted for it
	missing bool // it cannot be pulled
	breaks  int  // seconds after its start at which the Pod turns not Ready; 0: never
	flaps   int  // the Pod's readiness changes every so many seconds; 0: never
}

// simPod is one Pod, its kubelet and its app.
type simPod struct {
	record  podstate.Record
	id      rollout.ID
	content int // of the spec
	running int // of the container that runs
	started int64
	turned  int64
	ready   bool

	at        int64 // of the last write; 0: never written
	disturbed bool
	outage    int64 // the app is down until then
	ignored   bool  // by its node
	broken    bool  // the app never starts
	slow      int64 // how long the kubelet takes to restart a container
}

func (p *simPod) written(now int64) podstate.Written {
	if p.at == 0 {
		return podstate.Written{}
	}
	w := podstate.Written{At: uint32(p.at), Turned: uint32(p.turned), Disturbed: p.disturbed, Ready: p.ready, Acknowledged: !p.ignored}
	if p.running == p.content {
		w.Started = uint32(max(p.started, p.at))
		if p.ready {
			w.BackAt = uint32(max(p.started, p.at, p.turned))
		}
	}
	return w
}

// sim is a cluster with one SidecarSet and its leader.
type sim struct {
	*testing.T
	*rand.Rand
	now     int64
	images  []image // by content
	wanted  int
	spec    appsv1beta1.SidecarSetUpdateStrategy
	notes   map[string]string // annotations
	pods    map[types.UID]*simPod
	order   []*simPod // in the order of their creation
	rollout *rollout.Rollout
	serial  int
	version uint64
	// wrote counts the Pods that each content was written to, and worst is the largest number of
	// Pods that were not Ready by the rollout at a time.
	wrote map[int]int
	worst int
	// each is called every second.
	each func()
}

func simulate(t *testing.T, maxUnavailable string, apps, replicas int, images ...image) *sim {
	s := &sim{
		T: t, Rand: rand.New(rand.NewPCG(1, 2)), now: 1_800_000_000, images: append([]image{{}}, images...), notes: map[string]string{},
		pods: map[types.UID]*simPod{}, wrote: map[int]int{}, each: func() {},
	}
	s.spec.MaxUnavailable = amount(maxUnavailable)
	for app := range apps {
		for range replicas {
			s.create(app)
		}
	}
	for _, p := range s.order {
		p.ready, p.turned = true, s.now-3600
	}
	s.lead()
	s.run(2)
	return s
}

func amount(text string) *intstr.IntOrString { return new(intstr.Parse(text)) }

// lead starts a new leader.
func (s *sim) lead() {
	s.rollout = rollout.New()
	s.configure()
	for _, p := range s.order {
		p.id = s.rollout.Add(s.seen(p))
	}
}

func (s *sim) configure() {
	s.rollout.SetStrategy(rollout.NewStrategy(&appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Annotations: s.notes}, Spec: appsv1beta1.SidecarSetSpec{UpdateStrategy: s.spec}}))
	s.rollout.SetContent(strconv.Itoa(s.wanted), nil)
}

// edit makes a content the current one.
func (s *sim) edit(content int) {
	s.wanted = content
	s.configure()
	for _, p := range s.order {
		s.show(p)
	}
}

func (s *sim) create(app int) *simPod {
	s.serial++
	name := fmt.Sprintf("app%d-%d", app, s.serial)
	p := &simPod{content: s.wanted, running: s.wanted, started: s.now, turned: s.now, slow: 2}
	p.record = podstate.Record{
		UID: types.UID(name), Namespace: podstate.MakeNamespace("default"), Name: name, Active: true, Controller: podstate.MakeName("app" + strconv.Itoa(app)),
		Labels: podstate.MakeLabelSet(map[string]string{"app": strconv.Itoa(app)}), Order: podstate.Order{Created: s.now, Assigned: true, Phase: podstate.Running},
	}
	s.pods[p.record.UID] = p
	s.order = append(s.order, p)
	if s.rollout != nil {
		p.id = s.rollout.Add(s.seen(p))
	}
	return p
}

// remove deletes a Pod, and its controller creates another one.
func (s *sim) remove(p *simPod, app int) *simPod {
	s.rollout.Remove(p.id, true, time.Unix(s.now, 0))
	delete(s.pods, p.record.UID)
	for i, other := range s.order {
		if other == p {
			s.order = append(s.order[:i:i], s.order[i+1:]...)
			break
		}
	}
	return s.create(app)
}

// seen is the Pod as the leader sees it.
func (s *sim) seen(p *simPod) rollout.Pod {
	r := p.record
	r.Ready = p.ready
	if p.ready {
		r.Order.ReadySince = p.turned
	}
	pod := rollout.Pod{Record: &r, Written: p.written(s.now), Way: inplace.Images, Carries: p.content == s.wanted, Grace: 30}
	if pod.Carries {
		pod.Way = inplace.Current
	}
	if s.images[p.content].missing && p.running != p.content && !p.ready {
		pod.Trouble = 1
	}
	return pod
}

func (s *sim) show(p *simPod) { s.rollout.Set(p.id, s.seen(p), time.Unix(s.now, 0)) }

// step is one second of a Pod's kubelet and app.
func (s *sim) step(p *simPod) {
	if p.running != p.content && !p.ignored && s.now >= p.at+1 {
		if i := s.images[p.content]; !i.missing && (i.resize || s.now >= p.at+p.slow) {
			p.running, p.started = p.content, s.now
		}
	}
	i, up := s.images[p.running], s.now-p.started
	if s.images[p.running].resize {
		up += 10 // it has run before
	}
	ready := (p.running == p.content || p.ignored || s.now < p.at+1) && up >= 1 && !p.broken && s.now >= p.outage
	if i.breaks > 0 && up >= int64(i.breaks) || i.flaps > 0 && up/int64(i.flaps)%2 == 1 {
		ready = false
	}
	if ready != p.ready {
		p.ready, p.turned = ready, s.now
		s.show(p)
	} else if p.running == p.content && p.started == s.now {
		s.show(p)
	}
}

// down is how many Pods are not Ready that the rollout has disturbed.
func (s *sim) down() (n int) {
	for _, p := range s.order {
		if !p.ready && p.disturbed && s.now >= p.outage {
			n++
		}
	}
	return n
}

// run lets seconds pass.
func (s *sim) run(seconds int) *sim {
	for range seconds {
		s.now++
		for _, p := range s.order {
			s.step(p)
		}
		s.each()
		for range 5 {
			takes, _ := s.rollout.Next(64, s.version, time.Unix(s.now, 0))
			for _, take := range takes {
				s.write(take)
			}
			if len(takes) == 0 {
				break
			}
		}
		s.worst = max(s.worst, s.down())
	}
	return s
}

func (s *sim) write(take rollout.Take) {
	p := s.pods[take.UID]
	if take.Free && p.ready {
		s.Fatalf("%s was taken without a charge and is Ready", take.Name)
	}
	s.version++
	p.disturbed = p.ready || p.written(s.now).Counts(s.now)
	p.at, p.content = s.now, s.wanted
	s.wrote[s.wanted]++
	s.rollout.Return(take, rollout.Result{Kind: rollout.Written, Version: s.version}, time.Unix(s.now, 0))
	s.show(p)
}

// outdated is how many Pods do not have the content.
func (s *sim) outdated() (n int) {
	for _, p := range s.order {
		if p.content != s.wanted {
			n++
		}
	}
	return n
}

// until runs until every Pod has the content and is Ready, and returns the seconds it took.
func (s *sim) until(most int) int {
	s.Helper()
	from := s.now
	for s.now-from < int64(most) {
		s.run(1)
		if s.outdated() == 0 && s.down() == 0 {
			return int(s.now - from)
		}
	}
	s.Fatalf("%d Pods are outdated and %d down after %d s; %+v", s.outdated(), s.down(), most, s.rollout.Report(s.version, time.Unix(s.now, 0)))
	return 0
}

func (s *sim) atMost(what string, got, most int) {
	s.Helper()
	if got > most {
		s.Errorf("%s: %d, at most %d expected", what, got, most)
	}
	s.Logf("%s: %d (at most %d)", what, got, most)
}

// flapping makes a share of the Pods, in percent, not Ready for some seconds at any time.
func (s *sim) flapping(percent float64, outage int64) {
	s.each = func() {
		for range len(s.order) {
			if s.Float64() < percent/100/float64(outage) {
				s.order[s.IntN(len(s.order))].outage = s.now + outage
			}
		}
	}
	s.run(int(min(2*outage, 1200)))
}
