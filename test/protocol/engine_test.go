// Package protocol tests by simulation that no Pod is missed. It simulates a cluster from a seed
// and in simulated time, without a cluster, a clock or a goroutine. It reports a Pod that was
// created without a SidecarSet which it must have; see obligation.
//
// What is real: internal/podwebhook, which renders the shards, merges reviews into them, says which dependencies
// are in doubt, judges them, and plans the next version. What is modelled:
//
//   - etcd: one order of writes, preconditions, shards that are deleted and applied again.
//   - API servers: 1 to 3. Each has copies of the shards, which lag one by one, or stay behind
//     until the next write, or go back to an older one. It reviews and stores SidecarSets, late or
//     not at all, and calls the webhooks that select a Pod one after the other.
//   - Replicas: 1 to 3. The watches lag, stall for up to four minutes, or begin again with a list.
//     Requests and answers are slow, or get lost. Replicas crash, and others begin.
//   - Leaders: elections, leaders that continue beside the next one, and leaders that stop between
//     their reads and their writes.
//   - Upgrades from a version that finds the shards of webhooks without the UID of the operator's Namespace,
//     process by process, and back while both are there; and Namespaces that are recreated.
//   - Clients create, update, move and delete SidecarSets; unauthenticated clients send reviews of real SidecarSets
//     and of ones that never come.
//
// What is not modelled: namespaceSelectors, edits of webhooks by other programs, the limits of a
// shard and of what unauthenticated clients can do, rates of writes, static mode, the hardened profile, a restored
// etcd, API servers that stop or start, the body of what is injected. See docs/design/0005.
package protocol

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strconv"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podwebhook"
)

type configuration = admissionregistrationv1.MutatingWebhookConfiguration

// event is an action at a time.
type event struct {
	at time.Duration
	do func()
}

// simulation is one simulated cluster.
type simulation struct {
	wrong     mistake
	rng       *rand.Rand
	now       time.Duration
	agenda    []event // in their order
	faults    bool
	tracing   bool
	trace     []string
	violation string
	counts    map[string]int
	temper    temper

	stored struct { // etcd: one order of all writes
		version uint64
		sets    map[string]*sidecarSet
		shards  [podwebhook.Shards]*podwebhook.Shard
		log     []record
	}
	servers   []*apiServer
	processes []*process // that run
	followers []*follower
	uids      int // so far
	// namespaces are the UIDs of the operator's Namespace so far, the last one now. "" stands for an older
	// version of the operator.
	namespaces []types.UID
	past       []*sidecarSet // each version that was stored
	// promised is the newest generation that the operator has promised to its user, by UID: Pods
	// have it from now on.
	promised map[int]int
	// rounds is how often a leader has found for ten seconds that not all API servers use the newest
	// serial of a shard.
	rounds [podwebhook.Shards]int
}

// temper is how often what happens in one simulation. It differs between simulations: if each fault were
// equally frequent in all of them, they would be alike.
type temper struct {
	misfortunes   []func(*simulation)
	names, values []string      // of SidecarSets, and of the labels that they select
	rest          time.Duration // of clients between two writes

	// Each of these is a percentage.
	stalls  float64 // of news that make a watch stall
	late    float64 // of SidecarSets that are stored at the last moment
	refused float64 // of SidecarSets that another webhook refuses
	slow    float64 // of requests and of answers that are slow
	thinks  float64 // of the leader's passes that stop between reads and writes
}

func newSimulation(seed uint64, wrong mistake, faults bool) *simulation {
	w := &simulation{
		wrong: wrong, rng: rand.New(rand.NewPCG(seed, 9)), faults: faults, counts: map[string]int{}, promised: map[int]int{},
	}
	w.stored.sets = map[string]*sidecarSet{}
	if w.namespaces = []types.UID{"ns-0"}; w.chance(40) {
		w.namespaces[0] = ""
		w.after(w.upTo(200*time.Second), w.rename)
	}
	w.drawTemper()
	for i := range podwebhook.Shards {
		w.applyShard(i)
		w.setShard(i, w.stored.shards[i].Reconcile(nil, nil, false, settingsOf(w.namespace())).Next) // as a leader did before
	}
	for i := range 1 + w.rng.IntN(3) {
		w.addServer(i)
	}
	for range 1 + w.rng.IntN(3) {
		w.addProcess()
	}
	w.elect()
	return w
}

func (w *simulation) drawTemper() {
	t := &w.temper
	for i := range 1 + w.rng.IntN(3) {
		t.names = append(t.names, fmt.Sprint("set-", i))
	}
	shards := []int{w.rng.IntN(podwebhook.Shards), w.rng.IntN(podwebhook.Shards)}
	for many := pick(w, []int{2, 2, 3}); len(t.values) < many; {
		value := fmt.Sprint("app-", w.rng.IntN(1000))
		if s := (&sidecarSet{name: "set", value: value}).plan(); slices.Contains(shards, s.webhook.Shard(w.namespace())) {
			t.values = append(t.values, value)
		}
	}
	if t.rest = 10 * time.Second; !w.faults {
		return
	}
	often, renames := 35.0, w.chance(15) // some simulations are about Namespaces that are recreated while leaders change
	if renames {
		t.misfortunes, often = append(t.misfortunes, (*simulation).rename, (*simulation).elect), 15
	}
	for i, m := range misfortunes {
		if w.chance(often) && (i > 0 || w.chance(20)) {
			t.misfortunes = append(t.misfortunes, m)
		}
	}
	t.late, t.refused, t.slow = w.rng.Float64()*50, w.rng.Float64()*40, w.rng.Float64()*20
	if t.rest = w.upTo(80 * time.Second); w.chance(80) {
		t.stalls, t.thinks = w.rng.Float64()*80, w.rng.Float64()*40
	}
	if w.chance(20) {
		t.rest = time.Second
	}
}

func (w *simulation) namespace() types.UID { return w.namespaces[len(w.namespaces)-1] }

// shardsOf are the shards in which a webhook has been.
func (w *simulation) shardsOf(webhookName string) (all []int) {
	for _, uid := range w.namespaces {
		all = append(all, podwebhook.ShardOf(uid, webhookName))
	}
	return all
}

// rename gives the operator's Namespace another UID. Processes of an older version do not look at it, and
// are replaced one by one; a leader may be of either version meanwhile. Others notice some time later.
func (w *simulation) rename() {
	w.namespaces = append(w.namespaces, types.UID(fmt.Sprint("ns-", len(w.namespaces))))
	w.note("the Namespace is %s", w.namespace())
	for i, p := range w.processes {
		if p.namespace != "" {
			p.after(w.lag(30*time.Second), func() { p.namespace = w.namespace(); p.wake() })
			continue
		}
		w.after(time.Duration(i)*20*time.Second+w.upTo(20*time.Second), func() {
			if p.ended {
				return
			}
			w.note("%s is upgraded", p.name)
			w.addProcess()
			w.processes = slices.DeleteFunc(w.processes, func(o *process) bool { return o == p })
			if p.leader != nil && !p.leader.ended {
				p.leader.ended = true
				w.elect()
			}
			w.after(6*time.Second, func() { // it answers the calls that it has
				p.ended = true
				w.followers = slices.DeleteFunc(w.followers, func(f *follower) bool { return f == p.sets || f == p.rest })
			})
		})
	}
}

// after calls do later. Events of the same time happen in the order in which they were planned.
func (w *simulation) after(d time.Duration, do func()) {
	at := w.now + max(d, 0)
	i := sort.Search(len(w.agenda), func(i int) bool { return w.agenda[i].at > at })
	w.agenda = slices.Insert(w.agenda, i, event{at, do})
}

func (w *simulation) note(format string, args ...any) {
	if w.tracing {
		w.trace = append(w.trace, fmt.Sprintf("%11.3f ", w.now.Seconds())+fmt.Sprintf(format, args...))
	}
}

func (w *simulation) chance(percent float64) bool { return w.rng.Float64()*100 < percent }

// upTo returns a random time below d.
func (w *simulation) upTo(d time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(d)))
}

func (w *simulation) between(a, b time.Duration) time.Duration { return a + w.upTo(b-a) }

// lag returns a time below d that is mostly short: half of them are below a sixteenth.
func (w *simulation) lag(d time.Duration) time.Duration {
	return time.Duration(math.Pow(w.rng.Float64(), 4) * float64(d))
}

func pick[T any](w *simulation, some []T) T { return some[w.rng.IntN(len(some))] }

// once returns a function that calls do the first time that it is called.
func once(do func(ok bool)) func(ok bool) {
	over := false
	return func(ok bool) {
		if !over {
			over = true
			do(ok)
		}
	}
}

// sidecarSet is one version of a SidecarSet. Once it is stored, it never changes.
type sidecarSet struct {
	name     string
	uid, gen int
	since    int // the generation since which it selects this value
	version  uint64
	value    string // of the label that it selects
	ignore   bool   // its failure policy
	webhook  podwebhook.Webhook
	ready    int  // the generation for which the status says Ready
	deleting bool // it has a finalizer
	// vouched is the first version of its shard that its review has written, if it was stored in
	// time.
	vouched *podwebhook.Shard
}

// plan makes the webhook of a SidecarSet.
func (s *sidecarSet) plan() *sidecarSet {
	object := &appsv1beta1.SidecarSet{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, UID: types.UID(fmt.Sprintf("%08d", s.uid)), Generation: int64(s.gen)},
		Spec:       appsv1beta1.SidecarSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{s.value: "yes"}}},
	}
	if s.ignore {
		object.Annotations = map[string]string{appsv1beta1.AnnotationFailurePolicy: "Ignore"}
	}
	var err error
	if s.webhook, err = podwebhook.Of(object); err != nil {
		panic(err)
	}
	return s
}

func (s *sidecarSet) dependency() podwebhook.Dependency { return s.webhook.Dependencies[0] }

func (s *sidecarSet) String() string {
	return fmt.Sprintf("%s/%d.%d (%s)", s.name, s.uid, s.gen, s.value)
}

// record is one webhook of the log that all watches follow: a SidecarSet or a shard was written or
// deleted.
type record struct {
	version uint64
	set     string
	after   *sidecarSet       // nil if the SidecarSet was deleted
	index   int               // of the shard, if set is ""
	shard   *podwebhook.Shard // nil if it was deleted
}

func (w *simulation) write(r record) {
	w.stored.version++
	r.version = w.stored.version
	w.stored.log = append(w.stored.log, r)
	for _, f := range w.followers {
		if f.wants(r) {
			f.news(len(w.stored.log), r.set != "")
		}
	}
}

func (w *simulation) putSet(s sidecarSet) *sidecarSet {
	s.version = w.stored.version + 1
	w.past = append(w.past, &s)
	w.stored.sets[s.name] = &s
	w.write(record{set: s.name, after: &s})
	return &s
}

// putShard writes a shard if the stored one is still the one from which the writer began. It returns
// the stored one.
func (w *simulation) putShard(next *configuration) (now *podwebhook.Shard, written bool) {
	i, _ := podwebhook.ShardNumber(next.Name)
	before := w.stored.shards[i]
	if before == nil || before.Object.ResourceVersion != next.ResourceVersion || before.Object.UID != next.UID {
		return before, false
	}
	now = w.setShard(i, next)
	w.note("shard %d: serial %d, number %d, needs %v", i, now.Serial, now.RequiredSerial, now.Dependencies)
	for name, dependencies := range before.Dependencies {
		if slices.ContainsFunc(dependencies, func(n podwebhook.Dependency) bool { return !now.HasDependency(name, n) }) {
			for _, value := range w.temper.values { // when needs are gone, a wrong protocol misses Pods
				w.burst(value)
			}
		}
	}
	return now, true
}

func (w *simulation) setShard(i int, c *configuration) *podwebhook.Shard {
	version := w.stored.version + 1
	if before := w.stored.shards[i]; w.wrong == counterReset {
		if version = 1; before != nil {
			version += before.Version
		}
	}
	c.ResourceVersion = strconv.FormatUint(version, 10)
	s, err := podwebhook.Parse(c)
	if err != nil {
		panic(err)
	}
	w.stored.shards[i] = s
	w.write(record{index: i, shard: s})
	return s
}

// applyShard creates a shard as the manifests have it.
func (w *simulation) applyShard(i int) {
	w.setShard(i, &configuration{ObjectMeta: metav1.ObjectMeta{
		Name: podwebhook.ConfigurationName(i), UID: types.UID(fmt.Sprint("shard-", w.stored.version)), Labels: map[string]string{podwebhook.LabelConfiguration: "true"},
	}})
}

// wasReset says whether a shard was deleted since that version; nil is one that did not exist.
func (w *simulation) wasReset(since *podwebhook.Shard) bool {
	return since == nil || w.stored.shards[since.Index] == nil || w.stored.shards[since.Index].Object.UID != since.Object.UID
}

// follower is one watch: it learns of the log's records in their order, with a delay.
type follower struct {
	w       *simulation
	wants   func(record) bool
	learn   func(record)
	longest time.Duration // how long the watch is silent at most
	learned int           // how many records it has learned of
	stalled time.Duration // the watch stalls until then, since began
	began   time.Duration
}

// news plans that the follower hears of the first length records.
func (f *follower) news(length int, ofSet bool) {
	if f.w.chance(f.w.temper.stalls) && (ofSet || f.w.chance(20)) {
		f.stall(f.w.lag(f.longest))
	}
	f.w.after(f.w.between(2*time.Millisecond, 50*time.Millisecond), func() { f.hear(length) })
}

func (f *follower) stall(d time.Duration) {
	if f.stalled < f.w.now {
		f.began = f.w.now
	}
	f.stalled = min(max(f.stalled, f.w.now+d), f.began+f.longest)
}

func (f *follower) hear(length int) {
	w := f.w
	switch {
	case f.learned >= length:
		return
	case f.stalled > w.now:
		w.after(f.stalled-w.now, func() { f.hear(length) })
		return
	}
	news := w.stored.log[f.learned:length]
	if w.faults && w.chance(10) { // a list has the newest version of each object, in any order
		all := w.stored.log[f.learned:]
		news, length = nil, len(w.stored.log)
		for i, r := range all {
			if !slices.ContainsFunc(all[i+1:], func(later record) bool { return later.set == r.set && later.index == r.index }) {
				news = append(news, r)
			}
		}
		w.rng.Shuffle(len(news), func(i, j int) { news[i], news[j] = news[j], news[i] })
	}
	f.learned = length
	for _, r := range news {
		if f.wants(r) {
			f.learn(r)
		}
	}
}
