package testkit

import (
	"context"
	"sync"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/sidecarset/operator/internal/podwebhook"
)

// Shards returns the objects that hold the Pod webhooks, and the version of the
// cluster at which they were read. A shard whose object does not exist is nil.
func Shards(ctx context.Context, c kubernetes.Interface) (shards [podwebhook.Shards]*podwebhook.Shard, version string, err error) {
	list, err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{LabelSelector: podwebhook.Labelled().String()})
	if err != nil {
		return shards, "", err
	}
	for i := range list.Items {
		shard, err := podwebhook.Parse(&list.Items[i])
		if err != nil {
			return shards, "", err
		}
		shards[shard.Index] = shard
	}
	return shards, list.ResourceVersion, nil
}

// WatchShards calls see after each change of a shard: with its index, and with all shards as they
// are then. It ends when the returned function is called, which waits for the last call of see.
func WatchShards(t testing.TB, c kubernetes.Interface, see func(changed int, shards [podwebhook.Shards]*podwebhook.Shard)) (end func()) {
	t.Helper()
	shards, version, err := Shards(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	events, err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().Watch(t.Context(), metav1.ListOptions{LabelSelector: podwebhook.Labelled().String(), ResourceVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	var stopped sync.Once
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer events.Stop()
		for {
			select {
			case <-stop:
				return
			case event, ok := <-events.ResultChan():
				object, is := event.Object.(*admissionregistrationv1.MutatingWebhookConfiguration)
				if t.Context().Err() != nil {
					return
				}
				if !ok || !is {
					t.Errorf("the watch of shards has ended: %v", event.Object)
					return
				}
				shard, err := podwebhook.Parse(object)
				if err != nil {
					t.Error(err)
					return
				}
				if shards[shard.Index] = shard; event.Type == watch.Deleted {
					shards[shard.Index] = nil
				}
				see(shard.Index, shards)
			}
		}
	}()
	end = func() {
		stopped.Do(func() { close(stop) })
		<-done
	}
	t.Cleanup(end)
	return end
}
