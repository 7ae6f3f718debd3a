package certs

import (
	"fmt"
	"net"
	"net/url"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Targets are the objects that tell API servers which CAs to trust.
type Targets struct {
	// Mutating, Validating and Definition are the names of the objects of the manifests that the leader writes the bundle into. An
	// empty name is none.
	Mutating, Validating, Definition string
	// IsShard reports whether a MutatingWebhookConfiguration holds the operator's own webhooks, by its name. Package registration writes the
	// bundle of these. If it is nil, there are none.
	IsShard func(name string) bool
}

var (
	mutatingKind   = admissionregistrationv1.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration")
	validatingKind = admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration")
	definitionKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
)

// prototypes are empty objects of the kinds that the targets are of.
func (t Targets) prototypes() []client.Object {
	definition := &unstructured.Unstructured{}
	definition.SetGroupVersionKind(definitionKind)
	return []client.Object{&admissionregistrationv1.MutatingWebhookConfiguration{}, &admissionregistrationv1.ValidatingWebhookConfiguration{}, definition}
}

// CacheByObject are the options of a cache for the kinds that only this package reads. RBAC allows to watch one object of each, by
// name. Of the CustomResourceDefinition the cache keeps the conversion only.
func (t Targets) CacheByObject() map[client.Object]cache.ByObject {
	prototypes := t.prototypes()
	return map[client.Object]cache.ByObject{
		prototypes[1]: {Field: fields.OneTermEqualSelector("metadata.name", t.Validating)},
		prototypes[2]: {Field: fields.OneTermEqualSelector("metadata.name", t.Definition), Transform: keepConversion},
	}
}

func keepConversion(object any) (any, error) {
	definition, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	kept := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{
		"name": definition.GetName(), "uid": string(definition.GetUID()), "resourceVersion": definition.GetResourceVersion(),
	}}}
	kept.SetGroupVersionKind(definition.GroupVersionKind())
	if conversion, ok, _ := unstructured.NestedFieldNoCopy(definition.Object, "spec", "conversion"); ok {
		kept.Object["spec"] = map[string]any{"conversion": conversion}
	}
	return kept, nil
}

// names are the objects of the manifests.
func (t Targets) names() []objectKey {
	return slices.DeleteFunc([]objectKey{{mutatingKind, t.Mutating}, {validatingKind, t.Validating}, {definitionKind, t.Definition}},
		func(k objectKey) bool { return k.name == "" })
}

type objectKey struct {
	gvk  schema.GroupVersionKind
	name string
}

func (k objectKey) String() string { return k.gvk.Kind + " " + k.name }

// has reports whether an object is one of the targets, and whether it is a shard.
func (t Targets) has(k objectKey) (has, shard bool) {
	if slices.Contains(t.names(), k) {
		return true, false
	}
	shard = k.gvk == mutatingKind && t.IsShard != nil && t.IsShard(k.name)
	return shard, shard
}

// object is the part of a target that matters here. It is immutable.
type object struct {
	objectKey
	resourceVersion string
	shard           bool
	annotated       bool           // has annotations
	clients         []clientConfig // that call the operator
	others          []clientConfig // that call another server; the leader does not write them
}

// lacks reports whether a place that calls the operator has another bundle.
func (o *object) lacks(bundle []byte) bool {
	return slices.ContainsFunc(o.clients, func(c clientConfig) bool { return c.bundle != string(bundle) })
}

// clientConfig is one place in an object that tells API servers which server to call and which CAs to trust.
type clientConfig struct {
	webhook string // its name in messages
	path    string // JSON pointer to the clientConfig
	host    string // the name that the serving certificate must be valid for
	bundle  string // PEM; "" if there is none
}

// observe extracts from an object what tells API servers which CAs to trust. hosts are the operator's names.
func observe(key objectKey, shard bool, read client.Object, hosts []string) *object {
	o := &object{objectKey: key, resourceVersion: read.GetResourceVersion(), shard: shard, annotated: len(read.GetAnnotations()) > 0}
	shared := map[string]string{} // hundreds of webhooks have the same bundle: keep it once
	add := func(webhook, path string, config *admissionregistrationv1.WebhookClientConfig) {
		bundle, ok := shared[string(config.CABundle)]
		if !ok {
			bundle = string(config.CABundle)
			shared[bundle] = bundle
		}
		c := clientConfig{webhook, path, hostCalledBy(config), bundle}
		if slices.Contains(hosts, c.host) {
			o.clients = append(o.clients, c)
		} else {
			o.others = append(o.others, c)
		}
	}
	switch read := read.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		for i := range read.Webhooks {
			add("webhook "+read.Webhooks[i].Name, fmt.Sprintf("/webhooks/%d/clientConfig", i), &read.Webhooks[i].ClientConfig)
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		for i := range read.Webhooks {
			add("webhook "+read.Webhooks[i].Name, fmt.Sprintf("/webhooks/%d/clientConfig", i), &read.Webhooks[i].ClientConfig)
		}
	case *unstructured.Unstructured:
		var config admissionregistrationv1.WebhookClientConfig // has the same members
		client, ok, _ := unstructured.NestedMap(read.Object, "spec", "conversion", "webhook", "clientConfig")
		if ok && runtime.DefaultUnstructuredConverter.FromUnstructured(client, &config) == nil {
			add("conversion webhook", "/spec/conversion/webhook/clientConfig", &config)
		}
	}
	return o
}

// hostCalledBy returns the host that API servers call: the Service's, else the URL's; "" if there is none.
func hostCalledBy(config *admissionregistrationv1.WebhookClientConfig) string {
	if config.Service != nil {
		return ServiceName(config.Service.Name, config.Service.Namespace)
	}
	if config.URL == nil {
		return ""
	}
	u, err := url.Parse(*config.URL)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(u.Hostname()); ip != nil {
		return ip.String()
	}
	return u.Hostname()
}
