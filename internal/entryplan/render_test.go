package entryplan_test

import (
	"math"
	"reflect"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/entryplan"
)

const (
	touchedAnnotation = "sidecarset.io/widened"
	roomAnnotation    = "sidecarset.io/provisional-room"
	formatAnnotation  = "sidecarset.io/format"
	firstSerial       = 1000
)

func settings() *entryplan.Settings {
	return &entryplan.Settings{
		Namespace: "ours", NamespaceUID: "uid-ours", ExcludedNamespaces: []string{"ours", "kube-system", "ours"},
		Service: admissionregistrationv1.ServiceReference{Namespace: "ours", Name: "webhook"},
		Bundle:  []byte("bundle"), MinSerial: firstSerial,
	}
}

type configuration = admissionregistrationv1.MutatingWebhookConfiguration

// bare are the objects as an administrator applies them, without entries. The one for
// provisional entries is as a leader leaves it.
func bare() (l entryplan.Layout) {
	for i := range l {
		l[i] = &configuration{ObjectMeta: metav1.ObjectMeta{
			Name: entryplan.ConfigurationName(i), ResourceVersion: "1", Labels: map[string]string{entryplan.LabelConfiguration: "true"},
		}}
	}
	l[entryplan.Provisional].Annotations = map[string]string{roomAnnotation: strconv.Itoa(entryplan.MaxProvisional)}
	return l
}

// placed is the object that holds one entry of a stored SidecarSet.
func placed(t testing.TB, e entryplan.Entry, s *entryplan.Settings) (int, *configuration) {
	t.Helper()
	state := calm(bare(), e)
	unsettled(&state)
	plan := entryplan.Next(state, s)
	if len(plan.Changes) != 1 {
		t.Fatalf("Next = %v", plan)
	}
	return plan.Changes[0].Index, plan.Changes[0].Object
}

// widened is the object that holds one entry that was widened, at firstSerial, with
// the other objects empty.
func widened(t testing.TB, e entryplan.Entry, s *entryplan.Settings) (int, *configuration) {
	t.Helper()
	earlier := *s
	earlier.MinSerial--
	i, c := placed(t, e, &earlier)
	l := bare()
	l[i] = c
	changes, unplaced := widen(l, []entryplan.Entry{e}, s)
	if len(changes) != 1 || len(unplaced) != 0 || changes[0].Index != i {
		t.Fatalf("Widen = %v, %v", changes, unplaced)
	}
	return i, changes[0].Object
}

func TestEntryIsRenderedWhole(t *testing.T) {
	set := annotated("sidecarset.io/failure-policy", "Ignore")
	set.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}
	e := entryOf(t, set)
	i, got := widened(t, e, settings())
	name := entryplan.ConfigurationName(i)
	to := func(path string) admissionregistrationv1.WebhookClientConfig {
		return admissionregistrationv1.WebhookClientConfig{
			CABundle: []byte("bundle"),
			Service:  &admissionregistrationv1.ServiceReference{Namespace: "ours", Name: "webhook", Path: new(path), Port: new(int32(443))},
		}
	}
	created := func(resource string) []admissionregistrationv1.RuleWithOperations {
		return []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{"CREATE"},
			Rule: admissionregistrationv1.Rule{
				APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}, Scope: new(admissionregistrationv1.NamespacedScope),
			},
		}}
	}
	pods := admissionregistrationv1.MutatingWebhook{
		Name: e.Name, ClientConfig: to("/pods/fresh"), Rules: created("pods"),
		ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		NamespaceSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"env": "prod"},
			MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"kube-system", "ours"},
			}},
		},
		FailurePolicy: new(admissionregistrationv1.Ignore), MatchPolicy: new(admissionregistrationv1.Equivalent),
		SideEffects: new(admissionregistrationv1.SideEffectClassNone), TimeoutSeconds: new(int32(5)),
		AdmissionReviewVersions: []string{"v1"}, ReinvocationPolicy: new(admissionregistrationv1.NeverReinvocationPolicy),
	}
	barrier := admissionregistrationv1.MutatingWebhook{
		Name: name + ".barrier.sidecarset.io", ClientConfig: to("/barrier/" + name + "/1000"), Rules: created("configmaps"),
		ObjectSelector:    &metav1.LabelSelector{MatchLabels: map[string]string{"sidecarset.io/barrier": name}},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "ours"}},
		FailurePolicy:     new(admissionregistrationv1.Ignore), MatchPolicy: new(admissionregistrationv1.Equivalent),
		SideEffects: new(admissionregistrationv1.SideEffectClassNone), TimeoutSeconds: new(int32(2)),
		AdmissionReviewVersions: []string{"v1"}, ReinvocationPolicy: new(admissionregistrationv1.NeverReinvocationPolicy),
	}
	want := &configuration{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, ResourceVersion: "1", Labels: map[string]string{"sidecarset.io/pod-webhooks": "true"},
			Annotations:     map[string]string{touchedAnnotation: `{"` + e.Name + `":1000}`, formatAnnotation: "1", "sidecarset.io/excluded-namespaces": "kube-system,ours"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: "ours", UID: "uid-ours"}},
		},
		Webhooks: []admissionregistrationv1.MutatingWebhook{pods, barrier},
	}
	if e.Name > barrier.Name {
		want.Webhooks = []admissionregistrationv1.MutatingWebhook{barrier, pods}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("object (-want +got):\n%s", diff)
	}
}

func TestSettingsShowInEntries(t *testing.T) {
	e := entryOf(t, sidecarSet("log", "web"))
	rendered := func(change func(*entryplan.Settings)) admissionregistrationv1.MutatingWebhook {
		s := settings()
		change(s)
		i, object := widened(t, e, s)
		for _, w := range object.Webhooks {
			if w.Name == e.Name {
				return w
			}
		}
		t.Fatalf("object %d has no entry %s", i, e.Name)
		return admissionregistrationv1.MutatingWebhook{}
	}
	t.Run("a port of the Service is kept", func(t *testing.T) {
		w := rendered(func(s *entryplan.Settings) { s.Service.Port = new(int32(8443)) })
		if got := *w.ClientConfig.Service.Port; got != 8443 {
			t.Errorf("port %d", got)
		}
	})
	t.Run("a URL takes the place of the Service", func(t *testing.T) {
		w := rendered(func(s *entryplan.Settings) { s.URL = "https://127.0.0.1:9443/" })
		if w.ClientConfig.Service != nil || *w.ClientConfig.URL != "https://127.0.0.1:9443/pods/fresh" {
			t.Errorf("client config %v", w.ClientConfig)
		}
	})
	t.Run("reinvocation is as asked for", func(t *testing.T) {
		w := rendered(func(s *entryplan.Settings) { s.Reinvocation = admissionregistrationv1.IfNeededReinvocationPolicy })
		if got := *w.ReinvocationPolicy; got != admissionregistrationv1.IfNeededReinvocationPolicy {
			t.Errorf("policy %s", got)
		}
	})
	t.Run("no excluded namespace is no requirement", func(t *testing.T) {
		w := rendered(func(s *entryplan.Settings) { s.ExcludedNamespaces = nil })
		if diff := cmp.Diff(&metav1.LabelSelector{}, w.NamespaceSelector); diff != "" {
			t.Errorf("selector (-want +got):\n%s", diff)
		}
	})
}

// Serial, Owner and Touched read what was planned. A record that cannot be read is not a
// reason to take an entry off the fresh path: all of them count as touched now.
func TestObjectsAreReadBack(t *testing.T) {
	e := entryOf(t, sidecarSet("log", "web"))
	touched := func(value string) func(*configuration) {
		return func(c *configuration) { c.Annotations[touchedAnnotation] = value }
	}
	barrierPath := func(path string) func(*configuration) {
		return func(c *configuration) {
			for i := range c.Webhooks {
				if c.Webhooks[i].Name == c.Name+".barrier.sidecarset.io" {
					c.Webhooks[i].ClientConfig.Service.Path = &path
				}
			}
		}
	}
	type facts struct {
		Serial  int64
		Owner   string
		Touched map[string]int64
	}
	whole := map[string]int64{e.Name: firstSerial}
	tests := map[string]struct {
		edit func(*configuration)
		want facts
	}{
		"as it was planned":                  {func(*configuration) {}, facts{firstSerial, "uid-ours", whole}},
		"no annotations":                     {func(c *configuration) { c.Annotations = nil }, facts{firstSerial, "uid-ours", map[string]int64{}}},
		"an annotation that is no JSON":      {touched("yes"), facts{firstSerial, "uid-ours", whole}},
		"an annotation that is null":         {touched("null"), facts{firstSerial, "uid-ours", whole}},
		"a list for an annotation":           {touched("[1]"), facts{firstSerial, "uid-ours", whole}},
		"one of another version":             {touched(`{"v":2}`), facts{firstSerial, "uid-ours", map[string]int64{"v": 2}}},
		"a serial that is no path's":         {barrierPath("/barrier/" + entryplan.ConfigurationName(0)), facts{0, "uid-ours", whole}},
		"a negative serial":                  {barrierPath("/barrier/" + entryplan.ConfigurationName(0) + "/-3"), facts{0, "uid-ours", whole}},
		"no path":                            {func(c *configuration) { barrierPath("")(c) }, facts{0, "uid-ours", whole}},
		"no entries":                         {func(c *configuration) { c.Webhooks = nil }, facts{0, "uid-ours", whole}},
		"no owner":                           {func(c *configuration) { c.OwnerReferences = nil }, facts{firstSerial, "", whole}},
		"an owner of another kind":           {func(c *configuration) { c.OwnerReferences[0].Kind = "Node" }, facts{firstSerial, "", whole}},
		"a Namespace of another API is none": {func(c *configuration) { c.OwnerReferences[0].APIVersion = "example.com/v1" }, facts{firstSerial, "", whole}},
		"another Namespace is another owner": {func(c *configuration) { c.OwnerReferences[0].UID = "other" }, facts{firstSerial, "other", whole}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			i, c := widened(t, e, settings())
			tc.edit(c)
			got := facts{entryplan.Serial(c), string(entryplan.Owner(c)), entryplan.Touched(c)}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("facts (-want +got):\n%s", diff)
			}
			// Whatever it was, the next widening leaves it whole, with a higher serial.
			l := bare()
			l[i] = c
			changes, _ := widen(l, []entryplan.Entry{e}, settings())
			if len(changes) != 1 {
				t.Fatalf("%d changes", len(changes))
			}
			if len(c.Webhooks) == 0 {
				if changes[0].Index != entryplan.Provisional {
					t.Errorf("an entry that is gone is written to %s", changes[0].Object.Name)
				}
				return
			}
			after := changes[0].Object
			got = facts{entryplan.Serial(after), string(entryplan.Owner(after)), entryplan.Touched(after)}
			serial := max(tc.want.Serial+1, firstSerial)
			if diff := cmp.Diff(facts{serial, "uid-ours", map[string]int64{e.Name: serial}}, got); diff != "" {
				t.Errorf("facts after another widening (-want +got):\n%s", diff)
			}
		})
	}
}

// A serial that a user put back, or that cannot be increased, is followed by one of the clock.
func TestSerialsNeverGoBack(t *testing.T) {
	e := entryOf(t, sidecarSet("log", "web"))
	for _, edited := range []int64{3, 0, math.MaxInt64} {
		i, c := widened(t, e, settings())
		for at := range c.Webhooks {
			if c.Webhooks[at].Name == c.Name+".barrier.sidecarset.io" {
				c.Webhooks[at].ClientConfig.Service.Path = new("/barrier/" + c.Name + "/" + strconv.FormatInt(edited, 10))
			}
		}
		l := bare()
		l[i] = c
		s := settings()
		s.MinSerial = 2000
		changes, _ := widen(l, []entryplan.Entry{e}, s)
		if got := entryplan.Serial(changes[0].Object); got != 2000 {
			t.Errorf("serial %d follows %d, want 2000", got, edited)
		}
	}
}

// An API server that is behind may use the entries that an object held before it was
// emptied. So the next write has a higher serial, even if the writer's clock is slower.
func TestSerialsOutliveTheEntries(t *testing.T) {
	e, s, l := entryOf(t, sidecarSet("log", "web")), settings(), bare()
	write := func(changes []entryplan.Change) *configuration {
		if len(changes) != 1 {
			t.Fatalf("changes: %v", changes)
		}
		l[changes[0].Index] = changes[0].Object
		return changes[0].Object
	}
	first, _ := widen(l, []entryplan.Entry{e}, s)
	before := entryplan.Serial(write(first))
	if emptied := write(entryplan.RemoveAll(l)); len(emptied.Webhooks) != 0 || entryplan.Serial(emptied) != 0 {
		t.Fatalf("serial %d, webhooks %v are left: API servers cannot call us for it", entryplan.Serial(emptied), emptied.Webhooks)
	}
	s.MinSerial = before - 500
	second, _ := widen(l, []entryplan.Entry{e}, s)
	if got := entryplan.Serial(write(second)); got != before+1 {
		t.Errorf("serial %d follows %d", got, before)
	}
}

// The path of a URL is found behind any prefix.
func TestObjectsByURLAreReadBack(t *testing.T) {
	e := entryOf(t, sidecarSet("log", "web"))
	for _, url := range []string{"https://127.0.0.1:9443", "https://example.com/barrier/pods/"} {
		s := settings()
		s.URL = url
		i, c := widened(t, e, s)
		l := bare()
		l[i] = c
		if got := entryplan.Serial(c); got != firstSerial {
			t.Errorf("serial %d by %s", got, url)
		}
		if _, holds := l.Holds(e, s); !holds {
			t.Errorf("the entry is not found by %s", url)
		}
		state := calm(l, e)
		unsettled(&state)
		if plan := entryplan.Next(state, s); len(plan.Changes) != 0 {
			t.Errorf("%d changes to what is as it should be, by %s", len(plan.Changes), url)
		}
	}
}

// Whatever another program changes about an entry, the leader notices it, unless it only adds
// a namespace to a list of excluded ones. This is so for fields that Kubernetes may add, too.
func TestEveryChangeOfAnEntryIsNoticed(t *testing.T) {
	bySelectors := sidecarSet("log", "web")
	bySelectors.Spec.NamespaceSelector = &metav1.LabelSelector{
		MatchLabels:      map[string]string{"team": "web"},
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: metav1.LabelSelectorOpIn, Values: []string{"a", "b"}}},
	}
	byURL := settings()
	byURL.URL = "https://example.com/prefix/"
	for name, s := range map[string]*entryplan.Settings{"by Service": settings(), "by URL": byURL} {
		t.Run(name, func(t *testing.T) {
			e := entryOf(t, bySelectors)
			i, object := placed(t, e, s)
			changes := 0
			for {
				l := bare()
				l[i] = object.DeepCopy()
				w, left := webhookOf(l, e.Name), changes
				before := *w.DeepCopy()
				if !change(reflect.ValueOf(w).Elem(), &left) {
					break
				}
				changes++
				if _, ok := l.Holds(e, s); ok && l.Narrowing(e, s).By != "namespaces by kubernetes.io/metadata.name notin ()" {
					t.Errorf("a change is not noticed (-before +after):\n%s", cmp.Diff(before, *w))
				}
			}
			if changes < 40 {
				t.Errorf("only %d changes were tried", changes)
			}
		})
	}
}

// change changes one part of a value: the one after the first left parts; false if there
// are fewer. It leaves bytes as they are: the bundle is not compared.
func change(v reflect.Value, left *int) bool {
	here := func(do func()) bool {
		*left--
		if *left >= 0 {
			return false
		}
		do()
		return true
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return here(func() { v.Set(reflect.New(v.Type().Elem())) })
		}
		return here(func() { v.SetZero() }) || change(v.Elem(), left)
	case reflect.Struct:
		for i := range v.NumField() {
			if change(v.Field(i), left) {
				return true
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return false
		}
		for i := range v.Len() {
			if change(v.Index(i), left) {
				return true
			}
		}
		return here(func() { v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem()))) })
	case reflect.Map:
		return here(func() {
			changed := reflect.MakeMap(v.Type())
			changed.SetMapIndex(reflect.ValueOf("another"), reflect.ValueOf("label"))
			v.Set(changed)
		})
	case reflect.String:
		return here(func() { v.SetString(v.String() + "x") })
	case reflect.Int32:
		return here(func() { v.SetInt(v.Int() + 1) })
	}
	return false
}
