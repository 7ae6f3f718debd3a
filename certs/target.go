package certs

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/url"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Target is an object with a caBundle of the operator: one object by name, or all objects of a kind with some labels.
type Target struct {
	kind     targetKind
	name     string
	selector labels.Selector
	isOurs   func(name string) bool // which of the objects that selector selects; nil for all
	optional bool
}

// Optional returns the target as one that exists only while it is needed, so its absence is not reported. The operator makes such
// objects, so the leader publishes to them even if another program publishes to the objects of the manifests.
func (t Target) Optional() Target {
	t.optional = true
	return t
}

// targetKind is a kind of object, and how to find the clientConfigs in it.
type targetKind struct {
	schema.GroupVersionKind
	clients func(u *unstructured.Unstructured) []clientConfig
	// without says what is wrong with an object that was requested by name and has no clientConfig; "" if that is allowed.
	without string
	// contested reports whether another program may use such an object instead of this operator.
	contested bool
}

func admissionKind(kind string) targetKind {
	return targetKind{
		GroupVersionKind: schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: kind},
		clients:          webhookClients,
	}
}

// MutatingWebhooks is the MutatingWebhookConfiguration of that name.
func MutatingWebhooks(name string) Target {
	return Target{kind: admissionKind("MutatingWebhookConfiguration"), name: name}
}

// ValidatingWebhooks is the ValidatingWebhookConfiguration of that name.
func ValidatingWebhooks(name string) Target {
	return Target{kind: admissionKind("ValidatingWebhookConfiguration"), name: name}
}

// MutatingWebhooksLabelled is every MutatingWebhookConfiguration that selector selects and that has one of the operator's names.
// There may be none. If an administrator copied an object, the copy has the labels under another name: RBAC does not let the
// operator write it, and API servers call the operator through it only if the operator wrote it. RBAC cannot restrict list and
// watch to these names, as it does for the other targets.
func MutatingWebhooksLabelled(selector labels.Selector, isOurs func(name string) bool) Target {
	return Target{kind: admissionKind("MutatingWebhookConfiguration"), selector: selector, isOurs: isOurs}
}

// ConversionWebhook is the conversion webhook of the CustomResourceDefinition of that name.
func ConversionWebhook(crd string) Target {
	return Target{name: crd, kind: targetKind{
		GroupVersionKind: schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
		clients:          conversionClients,
		without:          "has no conversion webhook",
		contested:        true,
	}}
}

func (t Target) String() string {
	if t.name == "" {
		return fmt.Sprintf("%s with %s", t.kind.Kind, t.selector)
	}
	return t.kind.Kind + " " + t.name
}

// listOptions selects the target at the API server. RBAC with resourceNames allows a field selector on the name.
func (t Target) listOptions() *client.ListOptions {
	if t.name == "" {
		return &client.ListOptions{LabelSelector: t.selector}
	}
	return &client.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", t.name)}
}

// list returns an empty list to read the target into.
func (t Target) list() *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(t.kind.GroupVersion().WithKind(t.kind.Kind + "List"))
	return list
}

// object is the part of a published object that matters here. It is immutable.
type object struct {
	gvk             schema.GroupVersionKind
	name            string
	resourceVersion string
	optional        bool // whether its target is optional
	clients         []clientConfig
	others          []clientConfig // entries that call another server; the leader does not write them
}

func (o *object) String() string { return o.gvk.Kind + " " + o.name }

// observe extracts from an object what tells API servers which CAs to trust. The argument hosts has the operator's names.
func (t Target) observe(u *unstructured.Unstructured, hosts []string) *object {
	o := &object{
		gvk:             t.kind.GroupVersionKind,
		name:            u.GetName(),
		resourceVersion: u.GetResourceVersion(),
		optional:        t.optional,
	}
	for _, c := range t.kind.clients(u) {
		if slices.Contains(hosts, c.host) {
			o.clients = append(o.clients, c)
		} else {
			o.others = append(o.others, c)
		}
	}
	return o
}

// clientConfig is one place in an object that tells API servers which server to call and which CAs to trust.
type clientConfig struct {
	entry  string // its name in messages
	path   string // JSON pointer to the clientConfig
	host   string // the name that the serving certificate must be valid for
	bundle string // PEM; "" if there is none
}

func webhookClients(u *unstructured.Unstructured) []clientConfig {
	webhooks, _ := u.Object["webhooks"].([]any)
	clients := make([]clientConfig, 0, len(webhooks))
	shared := map[string]string{} // hundreds of entries have the same bundle: keep it once
	for i, w := range webhooks {
		webhook, _ := w.(map[string]any)
		name, _ := webhook["name"].(string)
		config, ok := webhook["clientConfig"].(map[string]any)
		if !ok {
			continue
		}
		c := readClientConfig(config)
		c.entry, c.path = "webhook "+name, fmt.Sprintf("/webhooks/%d/clientConfig", i)
		if first, ok := shared[c.bundle]; ok {
			c.bundle = first
		}
		shared[c.bundle] = c.bundle
		clients = append(clients, c)
	}
	return clients
}

func conversionClients(u *unstructured.Unstructured) []clientConfig {
	strategy, _, _ := unstructured.NestedString(u.Object, "spec", "conversion", "strategy")
	config, ok, _ := unstructured.NestedMap(u.Object, "spec", "conversion", "webhook", "clientConfig")
	if strategy != "Webhook" || !ok {
		return nil
	}
	c := readClientConfig(config)
	c.entry, c.path = "conversion webhook", "/spec/conversion/webhook/clientConfig"
	return []clientConfig{c}
}

// readClientConfig derives the host as the API server does: from the Service, else from the URL.
func readClientConfig(config map[string]any) clientConfig {
	var c clientConfig
	if service, ok := config["service"].(map[string]any); ok {
		name, _ := service["name"].(string)
		namespace, _ := service["namespace"].(string)
		c.host = ServiceName(name, namespace)
	} else if raw, ok := config["url"].(string); ok {
		if u, err := url.Parse(raw); err == nil {
			c.host = u.Hostname()
			if ip := net.ParseIP(c.host); ip != nil {
				c.host = ip.String()
			}
		}
	}
	if encoded, ok := config["caBundle"].(string); ok {
		if bundle, err := base64.StdEncoding.DecodeString(encoded); err == nil {
			c.bundle = string(bundle)
		}
	}
	return c
}

// selects applies listOptions again, for clients that do not select at the server, and the conditions that listOptions cannot
// express.
func (t Target) selects(u *unstructured.Unstructured) bool {
	if t.name == "" {
		return t.selector.Matches(labels.Set(u.GetLabels())) && (t.isOurs == nil || t.isOurs(u.GetName()))
	}
	return u.GetName() == t.name
}
