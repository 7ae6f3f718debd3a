package podwebhook_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podwebhook"
)

// unauthenticated clients is a shard to which anybody sends reviews.
type clients struct {
	t      *testing.T
	shard  *podwebhook.Shard
	stored func(string, podwebhook.Dependency) bool
}

// review reports whether a SidecarSet got its dependency.
func (s *clients) review(set *appsv1beta1.SidecarSet) bool {
	s.t.Helper()
	e := podWebhook(s.t, set)
	next, refused := s.shard.Review([]podwebhook.Webhook{e}, s.stored, 0, settings())
	if (next == nil) != (refused[e.Name] != nil) {
		s.t.Fatalf("written is %v, and refused are %v", next, refused)
	}
	if next != nil {
		s.shard = stored(s.t, next)
	}
	return s.shard.HasDependency(e.Name, e.Dependencies[0])
}

func TestUnauthenticatedClientsGetFewWebhooks(t *testing.T) {
	t.Parallel()
	apps := appsOf(t, 3, 40)
	known := sidecarSet("real", apps[0])
	there := podWebhook(t, known)
	s := &clients{t, holding(t, there), func(name string, n podwebhook.Dependency) bool {
		return name == there.Name && n.Is(there.Dependencies[0])
	}}
	got := 0
	for i, app := range apps[1:] {
		// Every other one names a SidecarSet that is stored, with selectors that the unauthenticated client made up.
		if s.review(sidecarSet([]string{"real", "made-up"}[i%2], app)) {
			got++
		}
	}
	if got != podwebhook.MaxUnstored || len(s.shard.Unstored(s.stored)) != got {
		t.Errorf("%d webhooks of unauthenticated clients, want %d", got, podwebhook.MaxUnstored)
	}
	if known.Generation++; !s.review(known) {
		t.Error("a SidecarSet that is stored got no dependency")
	}
	if next, refused := bare(t, 3).Review([]podwebhook.Webhook{there}, none, podwebhook.MaxUnstored, settings()); next != nil || refused[there.Name] == nil {
		t.Errorf("with as many in other shards, %v is written", next)
	}
}

func TestUnauthenticatedClientsGetFewDependencies(t *testing.T) {
	t.Parallel()
	e := podWebhook(t, sidecarSet("real", "web"))
	s := &clients{t, holding(t, e), func(_ string, n podwebhook.Dependency) bool { return n.Is(e.Dependencies[0]) }}
	got := 0
	for i := range 40 {
		if s.review(sidecarSet(fmt.Sprint(i, "-made-up"), "web")) {
			got++
		}
	}
	if got != 16 {
		t.Errorf("%d dependencies of unauthenticated clients, want 16", got)
	}
	again, next, forged := sidecarSet("0-made-up", "web"), sidecarSet("real", "web"), sidecarSet("real", "web")
	again.Generation, next.Generation, forged.UID = 9, 2, uid("forged")
	if !s.review(again) || !s.review(next) {
		t.Error("a dependency that is present could not be raised")
	}
	if s.review(forged) || !s.shard.HasDependency(e.Name, podwebhook.DependencyOf(next)) {
		t.Errorf("a dependency of another UID has changed the dependencies to %v", s.shard.Dependencies[e.Name])
	}
}

// Unauthenticated clients fill a shard with dependencies of long names. Those of stored SidecarSets still have room, and
// an API server accepts the object.
func TestDependenciesOfUnauthenticatedClientsLeaveRoom(t *testing.T) {
	t.Parallel()
	long := func(i int) string { return fmt.Sprintf("%05d-%s", i, strings.Repeat("n", 247)) }
	apps := appsOf(t, 3, 41)
	var sets []podwebhook.Webhook
	for i := range 200 {
		sets = append(sets, podWebhook(t, sidecarSet(long(i), apps[i%40])))
	}
	s := &clients{t, holding(t, sets...), func(_ string, n podwebhook.Dependency) bool { return n.Name < long(200) }}
	for i := range 40 * 20 {
		s.review(sidecarSet(long(1000+i), apps[i%40]))
	}
	size := func() int { return len(s.shard.Object.Annotations["sidecarset.io/shard"]) }
	clients := size()
	if clients > 128<<10 {
		t.Errorf("after the unauthenticated clients the record has %d bytes", clients)
	}
	more := slices.Clone(sets)
	for i := range 2000 {
		e := sets[i%40]
		e.Dependencies = []podwebhook.Dependency{{Name: long(200 + i), UID: "12345678", Generation: 1 << 40}}
		more = append(more, e)
	}
	late := podWebhook(t, sidecarSet(long(9000), apps[40]))
	p := s.shard.Reconcile(podwebhook.Combine(ours, append(more, late))[3], nil, false, settings())
	s.shard = stored(t, p.Next)
	if size()-clients < 48<<10 || p.Refused[late.Name] == nil || len(p.Foreign) > 0 || webhookOf(s.shard, late.Name) != nil {
		t.Errorf("the record has %d bytes after %d; refused are %d webhooks, foreign %v", size(), clients, len(p.Refused), p.Foreign)
	}
	for _, e := range sets {
		if !s.shard.HasDependency(e.Name, e.Dependencies[0]) {
			t.Errorf("the dependency of %s, which was present, is gone", e.Name)
		}
	}
	if next, refused := s.shard.Review([]podwebhook.Webhook{late}, all, 0, settings()); next != nil || refused[late.Name] == nil {
		t.Error("a review has added a dependency of a stored SidecarSet that has no room")
	}
}

// In an upgrade, all webhooks of a shard may leave it while as many come. An API server takes the object all the time.
func TestSidecarSetsThatMoveShareTheRoom(t *testing.T) {
	t.Parallel()
	var huge []podwebhook.Webhook
	for i := 0; len(huge) < 4; i++ {
		if name := fmt.Sprintf("%016x.pods.sidecarset.io", i); podwebhook.ShardOf(ours, name) == 3 {
			e := podWebhook(t, namespaces(fmt.Sprint("huge-", i), 5500)) // 330 KB
			e.Name = name
			huge = append(huge, e)
		}
	}
	leaving, coming := huge[:2], huge[2:]
	s := holding(t, leaving...)
	p := s.Reconcile(podwebhook.Combine(ours, coming)[3], nil, false, settings())
	if s = stored(t, p.Next); len(p.Refused) != 1 || len(s.Webhooks()) != 3 {
		t.Errorf("beside two that leave, %d of two have no place", len(p.Refused))
	}
	p = s.Reconcile(podwebhook.Combine(ours, coming)[3], s.DropAll(), false, settings())
	if s = stored(t, p.Next); len(p.Refused) != 0 || len(s.Webhooks()) != 2 {
		t.Errorf("after they have left, %d of two have no place, and there are %d", len(p.Refused), len(s.Webhooks()))
	}
}

// namespaces is a SidecarSet that lists this many namespaces.
func namespaces(name string, n int) *appsv1beta1.SidecarSet {
	r := in("kubernetes.io/metadata.name")
	for i := range n {
		r.Values = append(r.Values, fmt.Sprintf("%s-%050d", name, i))
	}
	set := inNamespaces(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{r}})
	set.Name, set.UID = name, uid(name)
	return set
}

func TestShardsHaveRoomForWhatIsStored(t *testing.T) {
	t.Parallel()
	apps := appsOf(t, 3, 130)
	var many, huge []podwebhook.Webhook
	for _, app := range apps {
		many = append(many, podWebhook(t, sidecarSet("set-"+app, app)))
	}
	for i := 0; len(huge) < 4; i++ {
		if e := podWebhook(t, namespaces(fmt.Sprint("huge-", i), 5000)); e.Shard(ours) == 3 { // 280 KB: two have room
			huge = append(huge, e)
		}
	}
	for _, tc := range []struct {
		wanted []podwebhook.Webhook
		places int
	}{{many, podwebhook.MaxWebhooks}, {huge, 2}} {
		s := &clients{t, bare(t, 3), none}
		for _, app := range apps {
			s.review(sidecarSet("unstored", app))
		}
		p := s.shard.Reconcile(podwebhook.Combine(ours, tc.wanted)[3], s.shard.DropAll(), false, settings())
		if len(p.Refused) != len(tc.wanted)-tc.places || len(p.Foreign) > 0 {
			t.Errorf("%d of %d have no place, want %d places; foreign are %v", len(p.Refused), len(tc.wanted), tc.places, p.Foreign)
		}
		s.shard = stored(t, p.Next)
		for _, refused := range p.Refused { // it says who has the places
			for _, part := range []string{"sidecarset-pods-3", tc.wanted[0].Dependencies[0].Name, "Let SidecarSets share selectors"} {
				if name := tc.wanted[0].Name; p.Refused[name] == nil && len(p.Refused) < 30 && !strings.Contains(refused.Error(), part) {
					t.Errorf("the reason lacks %q: %v", part, refused)
				}
			}
			if len(refused.Error()) > 1000 {
				t.Errorf("the reason is long: %v", refused)
			}
		}
		for _, e := range tc.wanted {
			if s.shard.Has(&e, settings()) == (p.Refused[e.Name] != nil) {
				t.Errorf("%s is refused by %v, and has a place: %v", e.Name, p.Refused[e.Name], s.shard.Has(&e, settings()))
			}
			if next, _ := s.shard.Review([]podwebhook.Webhook{e}, all, 0, settings()); (next == nil) != (p.Refused[e.Name] != nil) {
				t.Errorf("a review of %s writes %v", e.Name, next)
			}
		}
		if again := s.shard.Reconcile(podwebhook.Combine(ours, tc.wanted)[3], nil, false, settings()); again.Next != nil || len(again.Refused) != len(p.Refused) {
			t.Error("a second pass writes: those that have a place do not keep it")
		}
	}
	large := podWebhook(t, namespaces("large", 300))
	for _, stored := range []bool{false, true} { // an unauthenticated client may not write more than 16 KB
		next, refused := bare(t, large.Shard(ours)).Review([]podwebhook.Webhook{large}, func(string, podwebhook.Dependency) bool { return stored }, 0, settings())
		if (next != nil) != stored {
			t.Errorf("a webhook of more than 16 KB that is stored: %v; refused are %v", stored, refused)
		}
	}
}
