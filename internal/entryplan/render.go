package entryplan

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Settings are common to all entries.
type Settings struct {
	// Namespace is the operator's, and NamespaceUID its identity: the objects have it
	// as owner, so they are deleted with it.
	Namespace    string
	NamespaceUID types.UID
	// Ownerless leaves the owner of objects as it is: the API server does not let the
	// operator change it.
	Ownerless bool
	// ExcludedNamespaces are those for whose Pods API servers never call the operator;
	// they include Namespace.
	ExcludedNamespaces []string
	// Service is how API servers reach the operator, without a path. URL, if not "", is
	// used instead: a prefix that paths are appended to.
	Service admissionregistrationv1.ServiceReference
	URL     string
	// Reinvocation is Never if empty.
	Reinvocation admissionregistrationv1.ReinvocationPolicyType
	// Bundle is the CA bundle of new entries.
	Bundle []byte
	// MinSerial is the least serial of what is written now. Use the wall clock in
	// milliseconds, and more than any serial seen. It has to be higher than any serial
	// that an object of the same name had before, even if the object was deleted or
	// restored meanwhile: an API server may still use the former one.
	MinSerial int64
}

const (
	barrierSuffix         = ".barrier.sidecarset.io"
	barrierTimeoutSeconds = 2

	// annotationTouched holds, by entry, the serial of the last write for a SidecarSet
	// that may not have been stored yet: a JSON object.
	annotationTouched = "sidecarset.io/widened"
	// closed, in place of a serial, says that reviews do not use an entry: it has no
	// members, and the leader is about to remove it.
	closed = -1
	// annotationRoom holds the limit of provisional entries. The leader writes it; see
	// RoomOf.
	annotationRoom = "sidecarset.io/provisional-room"
	// annotationSerial holds the serial of an object without entries, which has no
	// barrier entry either.
	annotationSerial = "sidecarset.io/serial"
	// format is the newest format that this version of the operator can read. Raise it only
	// if an older version would misread what this one writes: an older version does not
	// change an object of a newer format, and does not rely on it.
	format = 1
)

// webhook renders an entry.
func (s *Settings) webhook(e Entry, path string) admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{
		Name:                    e.Name,
		ClientConfig:            s.clientConfig(path),
		Rules:                   rules("pods"),
		FailurePolicy:           new(e.FailurePolicy),
		MatchPolicy:             new(admissionregistrationv1.Equivalent),
		NamespaceSelector:       s.allowed(e.NamespaceSelector).DeepCopy(),
		ObjectSelector:          orEverything(e.Selector).DeepCopy(),
		SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
		TimeoutSeconds:          new(e.TimeoutSeconds),
		AdmissionReviewVersions: []string{"v1"},
		ReinvocationPolicy:      new(s.reinvocation()),
	}
}

// wrote reports whether webhook renders exactly this for some entry. If not, another
// program has written it.
func (s *Settings) wrote(w *admissionregistrationv1.MutatingWebhook) bool {
	_, _, ok := s.parse(w)
	return ok
}

// parse is the inverse of webhook; false if webhook renders nothing like this. The name of an
// entry tells which requirements another program has added.
func (s *Settings) parse(w *admissionregistrationv1.MutatingWebhook) (e Entry, path string, ok bool) {
	path = pathOf(w)
	if path != PathPods && path != PathPodsFresh || w.FailurePolicy == nil || w.TimeoutSeconds == nil {
		return Entry{}, "", false
	}
	for pods := range without(w.ObjectSelector) {
		for namespaces := range without(w.NamespaceSelector, s.shortened(w.NamespaceSelector)) {
			e = Entry{
				Selector: normal(pods), NamespaceSelector: normal(namespaces),
				FailurePolicy: *w.FailurePolicy, TimeoutSeconds: *w.TimeoutSeconds,
			}
			switch {
			case w.Name == coarseName:
				e = coarse(nil, e.FailurePolicy)
			case strings.HasSuffix(w.Name, provisionalSuffix):
				e = e.provisional()
			default:
				e.Name = e.hash() + nameSuffix
			}
			if s.says(w, &e, path) {
				return e, path, true
			}
		}
	}
	return Entry{}, "", false
}

// says reports whether a webhook equals the rendering of an entry, except for the
// bundle, which package certs keeps up to date, and for what another program leaves out. It
// is called for all entries in each plan.
func (s *Settings) says(w *admissionregistrationv1.MutatingWebhook, e *Entry, path string) bool {
	return w.Name == e.Name && s.callsAt(&w.ClientConfig, path) &&
		isValue(w.FailurePolicy, e.FailurePolicy) && isValue(w.TimeoutSeconds, e.TimeoutSeconds) &&
		isNarrowed(orEverything(e.Selector), w.ObjectSelector) && isNarrowed(s.allowed(e.NamespaceSelector), w.NamespaceSelector) &&
		isValue(w.MatchPolicy, admissionregistrationv1.Equivalent) && isValue(w.SideEffects, admissionregistrationv1.SideEffectClassNone) &&
		isValue(w.ReinvocationPolicy, s.reinvocation()) && len(w.MatchConditions) == 0 &&
		len(w.AdmissionReviewVersions) == 1 && w.AdmissionReviewVersions[0] == "v1" && slices.EqualFunc(w.Rules, podRules, sameRule)
}

// podRules are the rules of all entries for Pods.
var podRules = rules("pods")

func sameRule(a, b admissionregistrationv1.RuleWithOperations) bool {
	return slices.Equal(a.Operations, b.Operations) && slices.Equal(a.APIGroups, b.APIGroups) && slices.Equal(a.APIVersions, b.APIVersions) &&
		slices.Equal(a.Resources, b.Resources) && a.Scope != nil && isValue(b.Scope, *a.Scope)
}

func isValue[T comparable](pointer *T, value T) bool { return pointer != nil && *pointer == value }

// callsAt reports whether config is what clientConfig renders, except for the bundle.
func (s *Settings) callsAt(config *admissionregistrationv1.WebhookClientConfig, path string) bool {
	if s.URL != "" {
		return config.Service == nil && isValue(config.URL, strings.TrimSuffix(s.URL, "/")+path)
	}
	service := config.Service
	return service != nil && config.URL == nil && service.Namespace == s.Service.Namespace && service.Name == s.Service.Name &&
		isValue(service.Path, path) && isValue(service.Port, *cmp.Or(s.Service.Port, new(int32(443))))
}

func sameRequirement(a, b metav1.LabelSelectorRequirement) bool {
	return a.Key == b.Key && a.Operator == b.Operator && slices.Equal(a.Values, b.Values)
}

// author returns the settings of a process of the operator that may have written a
// webhook. While flags are rolled out, processes differ in excluded namespaces,
// reinvocation policy and Service. All of them exclude the operator's Namespace, and call
// a Service there, or the same URL.
func (s *Settings) author(w *admissionregistrationv1.MutatingWebhook) *Settings {
	other := *s
	if excluded := s.exclusion(w.NamespaceSelector); excluded != nil {
		other.ExcludedNamespaces = excluded.Values
	}
	if service := w.ClientConfig.Service; service != nil && service.Namespace == s.Namespace {
		other.Service, other.URL = *service, ""
	}
	if policy := w.ReinvocationPolicy; policy != nil {
		other.Reinvocation = *policy
	}
	return &other
}

// barrier renders the entry that shows which serial of an object an API server uses.
func (s *Settings) barrier(configuration string, serial int64) admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{
		Name:          configuration + barrierSuffix,
		ClientConfig:  s.clientConfig(BarrierPath(configuration, serial)),
		Rules:         rules("configmaps"),
		FailurePolicy: new(admissionregistrationv1.Ignore), // after a failed call the answer has no serial, so it proves nothing
		MatchPolicy:   new(admissionregistrationv1.Equivalent),
		NamespaceSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{corev1.LabelMetadataName: s.Namespace},
		},
		ObjectSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{LabelBarrier: configuration},
		},
		SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
		TimeoutSeconds:          new(int32(barrierTimeoutSeconds)),
		AdmissionReviewVersions: []string{"v1"},
		ReinvocationPolicy:      new(admissionregistrationv1.NeverReinvocationPolicy),
	}
}

func (s *Settings) clientConfig(path string) admissionregistrationv1.WebhookClientConfig {
	config := admissionregistrationv1.WebhookClientConfig{CABundle: s.Bundle}
	if s.URL != "" {
		config.URL = new(strings.TrimSuffix(s.URL, "/") + path)
		return config
	}
	service := s.Service
	service.Path = new(path)
	if service.Port == nil {
		service.Port = new(int32(443))
	}
	config.Service = &service
	return config
}

func (s *Settings) reinvocation() admissionregistrationv1.ReinvocationPolicyType {
	return cmp.Or(s.Reinvocation, admissionregistrationv1.NeverReinvocationPolicy)
}

// allowed adds the excluded namespaces to a user's selector. The result shares memory with it.
func (s *Settings) allowed(selector *metav1.LabelSelector) *metav1.LabelSelector {
	out := *orEverything(selector)
	if excluded := s.excluded(); len(excluded.Values) > 0 {
		out.MatchExpressions = append(slices.Clip(out.MatchExpressions), excluded)
	}
	return &out
}

func (s *Settings) excluded() metav1.LabelSelectorRequirement {
	excluded := slices.Clone(s.ExcludedNamespaces)
	slices.Sort(excluded)
	return metav1.LabelSelectorRequirement{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: slices.Compact(excluded)}
}

func orEverything(selector *metav1.LabelSelector) *metav1.LabelSelector {
	if selector == nil {
		return &metav1.LabelSelector{}
	}
	return selector
}

func rules(resource string) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource},
			Scope: new(admissionregistrationv1.NamespacedScope),
		},
	}}
}

// pathOf is the path of a rendered entry; "" if it has none that the operator renders.
func pathOf(w *admissionregistrationv1.MutatingWebhook) string {
	switch config := &w.ClientConfig; {
	case config.Service != nil && config.Service.Path != nil:
		return *config.Service.Path
	case config.URL != nil:
		for _, path := range []string{PathPodsFresh, PathPods} {
			if strings.HasSuffix(*config.URL, path) {
				return path
			}
		}
		if at := strings.LastIndex(*config.URL, PathBarrier); at >= 0 {
			return (*config.URL)[at:]
		}
	}
	return ""
}

// sameEntry reports whether a is b, except for the bundle, which package certs keeps up to
// date, and for what another program leaves out.
func sameEntry(a, b admissionregistrationv1.MutatingWebhook) bool {
	carry(&a, &b)
	a.ClientConfig.CABundle, b.ClientConfig.CABundle = nil, nil
	return equality.Semantic.DeepEqual(a, b)
}

// Serial is the serial in the path of a configuration object's barrier; 0 if the object
// has no entries. It grows with every write of an entry.
func Serial(c *admissionregistrationv1.MutatingWebhookConfiguration) int64 {
	at := find(c, c.Name+barrierSuffix)
	if at < 0 {
		return 0
	}
	_, serial, _ := ParseBarrierPath(pathOf(&c.Webhooks[at]))
	return serial
}

// lastSerial is the serial of an object, or the one that it had when it was emptied.
func lastSerial(c *admissionregistrationv1.MutatingWebhookConfiguration) int64 {
	if serial := Serial(c); serial > 0 {
		return serial
	}
	serial, err := strconv.ParseInt(c.Annotations[annotationSerial], 10, 64)
	if err != nil {
		return 0
	}
	return serial
}

// Owner is the UID of the Namespace that a configuration object belongs to, ""
// if it belongs to none.
func Owner(c *admissionregistrationv1.MutatingWebhookConfiguration) types.UID {
	for _, owner := range c.OwnerReferences {
		if owner.Kind == "Namespace" && owner.APIVersion == "v1" {
			return owner.UID
		}
	}
	return ""
}

// RoomOf returns the limit of provisional entries. The leader lowers it with each entry
// for which no SidecarSet was stored, and raises it with time. It returns false if no
// leader has written it: then no provisional entry is allowed.
func RoomOf(c *admissionregistrationv1.MutatingWebhookConfiguration) (room int, ok bool) {
	room, err := strconv.Atoi(c.Annotations[annotationRoom])
	if err != nil {
		return 0, false
	}
	return min(max(room, 0), MaxProvisional), true
}

// Touched is, by entry, the serial of the last write that put the entry on the fresh path
// for a SidecarSet that was not stored yet. Each such write changes it. If it cannot be
// read, every entry of the object counts as touched by its last write.
func Touched(c *admissionregistrationv1.MutatingWebhookConfiguration) map[string]int64 {
	touched := map[string]int64{}
	value, ok := c.Annotations[annotationTouched]
	if !ok {
		return touched
	}
	if err := json.Unmarshal([]byte(value), &touched); err == nil && touched != nil {
		return touched
	}
	touched = map[string]int64{}
	for i := range c.Webhooks {
		if strings.HasSuffix(c.Webhooks[i].Name, nameSuffix) {
			touched[c.Webhooks[i].Name] = Serial(c)
		}
	}
	return touched
}

func setTouched(c *admissionregistrationv1.MutatingWebhookConfiguration, touched map[string]int64) {
	for name := range touched {
		if find(c, name) < 0 {
			delete(touched, name)
		}
	}
	if len(touched) == 0 {
		delete(c.Annotations, annotationTouched)
		return
	}
	value, err := json.Marshal(touched)
	if err != nil {
		panic(err) // names and numbers
	}
	annotate(c, annotationTouched, string(value))
}

func annotate(c *admissionregistrationv1.MutatingWebhookConfiguration, key, value string) {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[key] = value
}

// find is the position of an entry by name, -1 if there is none.
func find(c *admissionregistrationv1.MutatingWebhookConfiguration, name string) int {
	for i := range webhooks(c) { // in place: they are large, and there may be 1,600 of them to look through
		if c.Webhooks[i].Name == name {
			return i
		}
	}
	return -1
}

// count is how many entries for Pods an object holds.
func count(c *admissionregistrationv1.MutatingWebhookConfiguration) (n int) {
	for i := range webhooks(c) {
		if strings.HasSuffix(c.Webhooks[i].Name, nameSuffix) {
			n++
		}
	}
	return n
}
