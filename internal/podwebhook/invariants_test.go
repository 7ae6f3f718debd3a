package podwebhook_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/test/rounds"
)

// simulation is one shard as an API server stores it, SidecarSets that come and go, and programs that
// edit the shard.
type simulation struct {
	t       *testing.T
	rng     *rand.Rand
	version int
	shard   *podwebhook.Shard
	read    *configuration // the object of shard, as it was read
	serials []uint64       // of all writes of the operator since the record was lost, newest last
	newest  uint64         // of all serials
	sets    map[string]*appsv1beta1.SidecarSet
	apps    []string
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	w := &simulation{t: t, rng: rand.New(rand.NewPCG(seed, 1)), version: 100, sets: map[string]*appsv1beta1.SidecarSet{}, apps: appsOf(t, 5, 6)}
	w.shard = parsed(t, applied(5, w.version))
	w.read = w.shard.Object.DeepCopy()
	return w
}

// aSidecarSet returns what a user may apply: a new SidecarSet, or another generation of one.
func (w *simulation) aSidecarSet() *appsv1beta1.SidecarSet {
	set := sidecarSet(fmt.Sprint("set-", w.rng.IntN(8)), w.apps[w.rng.IntN(len(w.apps))])
	set.UID = uid(fmt.Sprint(w.version, w.rng.IntN(2)))
	if is := w.sets[set.Name]; is != nil && w.rng.IntN(3) > 0 {
		set.UID, set.Generation = is.UID, is.Generation+w.rng.Int64N(3)
	}
	if w.rng.IntN(3) == 0 {
		set.Annotations = map[string]string{appsv1beta1.AnnotationFailurePolicy: "Ignore", appsv1beta1.AnnotationTimeoutSeconds: "9"}
	}
	return set
}

func (w *simulation) isStored(name string, n podwebhook.Dependency) bool {
	set := w.sets[n.Name]
	return set != nil && podwebhook.DependencyOf(set).Is(n) && podWebhook(w.t, set).Name == name
}

func (w *simulation) wanted() []podwebhook.Webhook {
	var all []podwebhook.Webhook
	for _, set := range w.sets {
		all = append(all, podWebhook(w.t, set))
	}
	return podwebhook.Combine(ours, all)[5]
}

// review has a SidecarSet reviewed. Some of these are stored.
func (w *simulation) review() {
	w.t.Helper()
	set := w.aSidecarSet()
	e, before := podWebhook(w.t, set), w.shard
	next, refused := before.Review([]podwebhook.Webhook{e}, w.isStored, 0, settings())
	if next == nil {
		if refused[e.Name] == nil {
			w.t.Fatal("nothing is written, and nothing refused")
		}
		return
	}
	w.write(next)
	if !w.shard.HasDependency(e.Name, e.Dependencies[0]) {
		w.t.Fatalf("%v is not held after its review", e.Dependencies)
	}
	for name, dependencies := range before.Dependencies {
		for _, n := range dependencies {
			is, ok := dependencyIn(w.shard, name, n)
			if !ok || is != n && !(n.Is(e.Dependencies[0]) && name == e.Name && is.Generation >= n.Generation) {
				w.t.Fatalf("a review of %v has made %v of need %v", e.Dependencies, is, n)
			}
		}
	}
	for _, is := range w.shard.Object.Webhooks {
		was := webhookOf(before, is.Name)
		switch {
		case is.Name == probeOf(w.shard).Name:
		case was == nil:
			if is.Name != e.Name || *is.FailurePolicy != admissionregistrationv1.Ignore || *is.TimeoutSeconds != 1 {
				w.t.Fatalf("a review of %s has added %v", e.Name, is)
			}
		default:
			then := *was
			if strings.HasSuffix(is.Name, ".pods.sidecarset.io") {
				then.ClientConfig = is.ClientConfig
			}
			if !reflect.DeepEqual(then, is) {
				w.t.Fatalf("a review of %s has changed %s (-was +is):\n%s", e.Name, is.Name, cmp.Diff(then, is))
			}
		}
	}
	if w.rng.IntN(2) == 0 {
		w.sets[set.Name] = set
	}
}

// lead reconciles the shard with decisions by chance, and checks that there is nothing left to do.
func (w *simulation) lead() {
	w.t.Helper()
	wanted, before := w.wanted(), w.shard
	said := podwebhook.Decisions{}
	nothing := podwebhook.Known{InUse: func(string) bool { return false }, Generation: func(podwebhook.Dependency) (int64, bool) { return 0, false }, Seen: func(podwebhook.Dependency) bool { return false }}
	for _, d := range before.Doubts(wanted, nothing) {
		said[d.Is()] = []podwebhook.Decision{{}, {Drop: true}, {Lower: 1 + w.rng.Int64N(max(d.Dependency.Generation, 1))}}[w.rng.IntN(3)]
	}
	p := before.Reconcile(wanted, said, w.rng.IntN(8) == 0, settings())
	if len(p.Refused) > 0 {
		w.t.Fatalf("refused are %v", p.Refused)
	}
	if p.Next == nil && before.Serial == 0 && before.IsEmpty() && len(wanted) == 0 {
		return
	}
	if p.Next != nil {
		w.write(p.Next)
	}
	for name, dependencies := range before.Dependencies {
		for _, n := range dependencies {
			is, ok := dependencyIn(w.shard, name, n)
			v, asked := said[podwebhook.Doubtful{Webhook: name, Dependency: n}]
			least := int64(0) // the generation that is stored with the selectors of the webhook
			if w.isStored(name, n) {
				least = w.sets[n.Name].Generation
			}
			switch {
			case asked == (least >= n.Generation):
				w.t.Fatalf("for need %v of %s, of which %d is stored, it is in doubt: %v", n, name, least, asked)
			case ok && v.Lower > 0 && is.Generation != max(v.Lower, least):
				w.t.Fatalf("need %v of %s is lowered to %v, and the decision was %v", n, name, is, v)
			case !ok && webhookOf(before, name) == nil:
			case !ok && (!v.Drop || w.isStored(name, n)):
				w.t.Fatalf("need %v of %s is gone without a decision", n, name)
			case ok && is.Generation < n.Generation && v.Lower == 0:
				w.t.Fatalf("need %v of %s is lowered to %v without a decision", n, name, is)
			}
		}
	}
	for i := range wanted {
		e := &wanted[i]
		if !w.shard.Has(e, settings()) {
			w.t.Fatalf("after a pass the shard does not have %s:\n%v", e.Name, webhookOf(w.shard, e.Name))
		}
		if r := webhookOf(w.shard, e.Name); fmt.Sprint(r.Rules[0].Operations, r.Rules[0].Resources) != "[CREATE] [pods]" {
			w.t.Fatalf("%s is for %v", e.Name, r.Rules)
		}
	}
	if webhooks := slices.Sorted(slices.Values(w.shard.Webhooks())); !slices.Equal(webhooks, slices.Sorted(maps.Keys(w.shard.Dependencies))) {
		w.t.Fatalf("the webhooks are %v, and have needs %v", webhooks, w.shard.Dependencies)
	}
	if again := w.shard.Reconcile(wanted, nil, false, settings()); again.Next != nil || len(again.Foreign) > 0 {
		w.t.Fatalf("a second pass writes (-first +second):\n%s", cmp.Diff(w.shard.Object, again.Next))
	}
}

func dependencyIn(s *podwebhook.Shard, name string, n podwebhook.Dependency) (podwebhook.Dependency, bool) {
	at := slices.IndexFunc(s.Dependencies[name], n.Is)
	if at < 0 {
		return podwebhook.Dependency{}, false
	}
	return s.Dependencies[name][at], true
}

// write stores what the operator writes, and checks what is so of every write.
func (w *simulation) write(next *configuration) {
	w.t.Helper()
	before := w.shard
	if next.ResourceVersion != before.Object.ResourceVersion {
		w.t.Fatalf("version %s has no precondition", next.ResourceVersion)
	}
	if !reflect.DeepEqual(w.read, before.Object) {
		w.t.Fatalf("what was read is changed (-before +after):\n%s", cmp.Diff(w.read, before.Object))
	}
	w.put(next)
	after := w.shard
	if after.Serial <= w.newest {
		w.t.Fatalf("serial %d follows %d", after.Serial, w.newest)
	}
	if w.newest = after.Serial; before.Serial == 0 {
		w.serials = nil
	}
	w.serials = append(w.serials, after.Serial)
	raised := false
	for name, dependencies := range after.Dependencies {
		for _, n := range dependencies {
			was, ok := dependencyIn(before, name, n)
			raised = raised || !ok || was.Generation < n.Generation
		}
	}
	if want := map[bool]uint64{true: after.Serial, false: before.RequiredSerial}[raised]; after.RequiredSerial != want {
		w.t.Fatalf("the number is %d, want %d; a dependency was added or raised: %v", after.RequiredSerial, want, raised)
	}
	for _, name := range after.Webhooks() {
		if path := *webhookOf(after, name).ClientConfig.Service.Path; path != podwebhook.PodsPath(5, after.RequiredSerial) {
			w.t.Fatalf("%s has the path %s, and the number is %d", name, path, after.RequiredSerial)
		}
	}
	if probe := probeOf(after); probe != nil {
		var want []string
		for _, serial := range slices.Backward(w.serials[max(0, len(w.serials)-8):]) {
			want = append(want, fmt.Sprint(serial))
		}
		if probe.Rules[0].Resources[0] != "configmaps" || probe.NamespaceSelector.MatchLabels[corev1.LabelMetadataName] != "ours" || *probe.TimeoutSeconds != 1 {
			w.t.Fatalf("the probe is not for probes only: %v", probe)
		}
		r := probe.ObjectSelector.MatchExpressions[0]
		if r.Key != podwebhook.ProbeLabel(5) || !slices.Equal(r.Values, want) || *probe.ClientConfig.Service.Path != podwebhook.ProbePath(5) {
			w.t.Fatalf("the probe is %v, want the serials %v", probe, want)
		}
	} else if !after.IsEmpty() {
		w.t.Fatal("there is no probe")
	}
	if owners := after.Object.OwnerReferences; len(owners) != 1 || owners[0].UID != "uid-ours" {
		w.t.Fatalf("the owners are %v", owners)
	}
	if c := after.Object; c.Labels[optOut] != "true" || c.Annotations[optOut] != "true" || !podwebhook.Labelled().Matches(labels.Set(c.Labels)) {
		w.t.Fatalf("the labels are %v, the annotations %v", c.Labels, c.Annotations)
	}
}

func (w *simulation) put(c *configuration) {
	w.t.Helper()
	c = c.DeepCopy()
	w.version += w.rng.IntN(5)
	c.ResourceVersion = fmt.Sprint(w.version)
	w.shard = stored(w.t, c)
	w.read = w.shard.Object.DeepCopy()
	w.version = int(w.shard.Version)
}

// edit is what another program, or a user with kubectl, does to the shard.
func (w *simulation) edit() {
	c := w.shard.Object.DeepCopy()
	kinds := 9
	if len(c.Webhooks) == 0 {
		kinds = 4
	}
	at := w.rng.IntN(max(len(c.Webhooks), 1))
	switch w.rng.IntN(kinds) {
	case 0: // deleted, and applied again
		c = applied(5, 0)
	case 1:
		c.Webhooks = nil
	case 2:
		delete(c.Annotations, "sidecarset.io/shard")
	case 3:
		if webhookOf(w.shard, "other.example.com") == nil && len(w.shard.Object.Webhooks) > 0 {
			added := *c.Webhooks[0].DeepCopy()
			added.Name = []string{"other.example.com", "other.pods.sidecarset.io"}[w.rng.IntN(2)]
			if webhookOf(w.shard, added.Name) == nil {
				c.Webhooks = append(c.Webhooks, added)
			}
		}
	case 4:
		c.Webhooks = slices.Delete(c.Webhooks, at, at+1)
	case 5:
		c.Webhooks[at].FailurePolicy = new(admissionregistrationv1.Fail)
	case 6:
		c.Webhooks[at].NamespaceSelector.MatchExpressions = append(c.Webhooks[at].NamespaceSelector.MatchExpressions, notIn("control-plane", "true"))
	case 7:
		c.Webhooks[at].ClientConfig.CABundle = [][]byte{[]byte("another"), nil}[w.rng.IntN(2)]
	case 8:
		c.Webhooks[at].ObjectSelector = nil
	}
	w.put(c)
}

// Whatever happens, each write keeps the invariants of design 0005, and one pass of the leader is enough.
func TestInvariantsHoldWhateverHappens(t *testing.T) {
	t.Parallel()
	for seed := range uint64(rounds.Of(60, 10)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := newSimulation(t, seed)
			for range 100 {
				switch w.rng.IntN(9) {
				case 0, 1, 2, 3:
					w.review()
				case 4:
					w.edit()
				case 5:
					for _, name := range slices.Sorted(maps.Keys(w.sets))[:min(1, len(w.sets))] {
						delete(w.sets, name)
					}
				case 6: // stored without a review of ours
					set := w.aSidecarSet()
					w.sets[set.Name] = set
				default:
					w.lead()
				}
			}
			if next := w.shard.RemoveAll(); next != nil {
				if w.write(next); !w.shard.IsEmpty() || len(w.shard.Dependencies) > 0 || w.shard.RemoveAll() != nil {
					t.Fatalf("%v is left", w.shard.Object)
				}
			}
		})
	}
}
