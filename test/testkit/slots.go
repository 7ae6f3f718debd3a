package testkit

import (
	"context"
	"sync"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/sidecarset/operator/internal/entry"
)

// Slots returns the objects that hold the webhook entries for Pods, and the version of the
// cluster at which they were read. A slot whose object does not exist is nil.
func Slots(ctx context.Context, c kubernetes.Interface) (slots [entry.Slots]*entry.Slot, version string, err error) {
	list, err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{LabelSelector: entry.Labelled().String()})
	if err != nil {
		return slots, "", err
	}
	for i := range list.Items {
		slot, err := entry.Parse(&list.Items[i])
		if err != nil {
			return slots, "", err
		}
		slots[slot.Index] = slot
	}
	return slots, list.ResourceVersion, nil
}

// WatchSlots calls see after each change of a slot: with its index, and with all slots as they
// are then. It ends when the returned function is called, which waits for the last call of see.
func WatchSlots(t testing.TB, c kubernetes.Interface, see func(changed int, slots [entry.Slots]*entry.Slot)) (end func()) {
	t.Helper()
	slots, version, err := Slots(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	events, err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().Watch(t.Context(), metav1.ListOptions{LabelSelector: entry.Labelled().String(), ResourceVersion: version})
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
					t.Errorf("the watch of slots has ended: %v", event.Object)
					return
				}
				slot, err := entry.Parse(object)
				if err != nil {
					t.Error(err)
					return
				}
				if slots[slot.Index] = slot; event.Type == watch.Deleted {
					slots[slot.Index] = nil
				}
				see(slot.Index, slots)
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
