package certs

import (
	"fmt"
	"net"
	"net/url"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
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
	// list returns an empty list. Webhook configurations are read as Go structs: the objects
	// for the entries of the Pod webhook are large, and each SidecarSet changes some.
	list    func() client.ObjectList
	clients func(o client.Object) []clientConfig
	// without says what is wrong with an object that was requested by name and has no clientConfig; "" if that is allowed.
	without string
	// contested reports whether another program may use such an object instead of this operator.
	contested bool
}

var (
	mutatingKind = targetKind{
		GroupVersionKind: admissionregistrationv1.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration"),
		list:             func() client.ObjectList { return &admissionregistrationv1.MutatingWebhookConfigurationList{} },
		clients:          webhookClients,
	}
	validatingKind = targetKind{
		GroupVersionKind: admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration"),
		list:             func() client.ObjectList { return &admissionregistrationv1.ValidatingWebhookConfigurationList{} },
		clients:          webhookClients,
	}
	definitionKind = targetKind{
		GroupVersionKind: schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
		list: func() client.ObjectList {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinitionList"})
			return list
		},
		clients:   conversionClients,
		without:   "has no conversion webhook",
		contested: true,
	}
)

// MutatingWebhooks is the MutatingWebhookConfiguration of that name.
func MutatingWebhooks(name string) Target {
	return Target{kind: mutatingKind, name: name}
}

// ValidatingWebhooks is the ValidatingWebhookConfiguration of that name.
func ValidatingWebhooks(name string) Target {
	return Target{kind: validatingKind, name: name}
}

// MutatingWebhooksLabelled is every MutatingWebhookConfiguration that selector selects and that has one of the operator's names.
// There may be none. If an administrator copied an object, the copy has the labels under another name: RBAC does not let the
// operator write it, and API servers call the operator through it only if the operator wrote it. RBAC cannot restrict list and
// watch to these names, as it does for the other targets.
func MutatingWebhooksLabelled(selector labels.Selector, isOurs func(name string) bool) Target {
	return Target{kind: mutatingKind, selector: selector, isOurs: isOurs}
}

// ConversionWebhook is the conversion webhook of the CustomResourceDefinition of that name.
func ConversionWebhook(crd string) Target {
	return Target{kind: definitionKind, name: crd}
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
func (t Target) observe(read client.Object, hosts []string) *object {
	o := &object{
		gvk:             t.kind.GroupVersionKind,
		name:            read.GetName(),
		resourceVersion: read.GetResourceVersion(),
		optional:        t.optional,
	}
	for _, c := range t.kind.clients(read) {
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

func webhookClients(o client.Object) []clientConfig {
	var clients []clientConfig
	shared := map[string]string{} // hundreds of entries have the same bundle: keep it once
	add := func(i int, name string, config *admissionregistrationv1.WebhookClientConfig) {
		bundle, ok := shared[string(config.CABundle)]
		if !ok {
			bundle = string(config.CABundle)
			shared[bundle] = bundle
		}
		clients = append(clients, clientConfig{"webhook " + name, fmt.Sprintf("/webhooks/%d/clientConfig", i), hostCalledBy(config), bundle})
	}
	switch o := o.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		for i := range o.Webhooks {
			add(i, o.Webhooks[i].Name, &o.Webhooks[i].ClientConfig)
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		for i := range o.Webhooks {
			add(i, o.Webhooks[i].Name, &o.Webhooks[i].ClientConfig)
		}
	}
	return clients
}

func conversionClients(o client.Object) []clientConfig {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	strategy, _, _ := unstructured.NestedString(u.Object, "spec", "conversion", "strategy")
	read, ok, _ := unstructured.NestedMap(u.Object, "spec", "conversion", "webhook", "clientConfig")
	if strategy != "Webhook" || !ok {
		return nil
	}
	var config admissionregistrationv1.WebhookClientConfig // has the same members
	if runtime.DefaultUnstructuredConverter.FromUnstructured(read, &config) != nil {
		return nil
	}
	return []clientConfig{{"conversion webhook", "/spec/conversion/webhook/clientConfig", hostCalledBy(&config), string(config.CABundle)}}
}

// hostCalledBy returns the host that API servers call: that of the Service, else that of the URL.
func hostCalledBy(config *admissionregistrationv1.WebhookClientConfig) string {
	switch {
	case config.Service != nil:
		return ServiceName(config.Service.Name, config.Service.Namespace)
	case config.URL != nil:
		return hostOf(*config.URL)
	}
	return ""
}

// hostOf is the host of a URL; "" if it does not parse.
func hostOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(u.Hostname()); ip != nil {
		return ip.String()
	}
	return u.Hostname()
}

// selects applies listOptions again, for clients that do not select at the server, and the conditions that listOptions cannot
// express.
func (t Target) selects(o client.Object) bool {
	if t.name == "" {
		return t.selector.Matches(labels.Set(o.GetLabels())) && (t.isOurs == nil || t.isOurs(o.GetName()))
	}
	return o.GetName() == t.name
}
