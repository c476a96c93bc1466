//go:build linux

package daemonset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

var (
	daemonSets = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

// object is the metadata of an object. Nothing else is requested until the end.
type object = metav1.PartialObjectMetadata

// api makes the requests.
type api struct {
	source Source
	mu     sync.Mutex
	client metadata.Interface
}

// connect returns the client. It tries again if an earlier attempt failed.
func (a *api) connect() (metadata.Interface, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != nil {
		return a.client, nil
	}
	config, err := a.source.Config()
	if err != nil {
		return nil, fmt.Errorf("prepare to ask the API server: %w", err)
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("prepare to ask the API server: %w", err)
	}
	a.client = client
	return client, nil
}

// get reads an object; nil if there is none. The namespace of one without is "".
func (a *api) get(ctx context.Context, r schema.GroupVersionResource, namespace, name string) (*object, error) {
	client, err := a.connect()
	if err != nil {
		return nil, err
	}
	o, err := client.Resource(r).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case o.UID == "":
		return nil, errors.New("the API server's answer is not an object")
	}
	return o, nil
}

// whole reads an object with all that it has. No element of path may be empty.
func (a *api) whole(ctx context.Context, into any, path ...string) error {
	if slices.Contains(path, "") {
		return errors.New("the node's name is not known: see --node-name")
	}
	config, err := a.source.Config()
	if err != nil {
		return fmt.Errorf("prepare to ask the API server: %w", err)
	}
	scheme := runtime.NewScheme() // of a Status alone, which says why not
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return fmt.Errorf("prepare to ask the API server: %w", err)
	}
	answer := client.Get().AbsPath(path...).Do(ctx)
	if err := answer.Error(); err != nil { // that of Raw lacks the server's words
		return err
	}
	text, err := answer.Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// selection selects the one name, so that a role may grant list and watch by resourceNames.
func (a *api) selection() string {
	return fields.OneTermEqualSelector("metadata.name", a.source.Name).String()
}

// listTimeout bounds a request to a server that never answers.
const listTimeout = 30 * time.Second

// list reads the DaemonSet, nil if there is none. A watch starts at the list's version, because the server may have
// forgotten that of the object.
func (a *api) list(ctx context.Context) (found *object, version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	client, err := a.connect()
	if err != nil {
		return nil, "", err
	}
	list, err := client.Resource(daemonSets).Namespace(a.source.Namespace).List(ctx, metav1.ListOptions{FieldSelector: a.selection()})
	if err != nil {
		return nil, "", err
	}
	if list.ResourceVersion == "" {
		return nil, "", errors.New("the API server's answer is not a list")
	}
	for i := range list.Items {
		if list.Items[i].Name == a.source.Name {
			found = &list.Items[i]
		}
	}
	return found, list.ResourceVersion, nil
}

// watch calls note with each change of the DaemonSet since a version, until the server ends the watch, which it does after
// some minutes. The next watch starts at the version that it returns.
func (a *api) watch(ctx context.Context, since string, note func(*object)) (version string, err error) {
	lasts := int64(300 + rand.IntN(300)) //nolint:gosec // spreads nodes, keeps no secret
	ctx, cancel := context.WithTimeout(ctx, time.Duration(lasts)*time.Second+listTimeout)
	defer cancel()
	client, err := a.connect()
	if err != nil {
		return since, err
	}
	w, err := client.Resource(daemonSets).Namespace(a.source.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: a.selection(), ResourceVersion: since, AllowWatchBookmarks: true, TimeoutSeconds: &lasts,
	})
	if err != nil {
		return since, err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		o, ok := event.Object.(*object)
		switch {
		case event.Type == watch.Error: // 410, for one: the version is too old
			return since, apierrors.FromObject(event.Object)
		case !ok:
			return since, fmt.Errorf("watch: the API server sent a %T", event.Object)
		case event.Type == watch.Deleted:
			note(nil)
		case event.Type != watch.Bookmark:
			note(o)
		}
		since = o.ResourceVersion
	}
	return since, ctx.Err()
}
