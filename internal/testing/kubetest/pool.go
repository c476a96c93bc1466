package kubetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// pool has the servers of [Lend] that no test uses at the moment.
var pool struct {
	mu   sync.Mutex
	free []*Server
}

// Lend returns a server that no other test uses until this one ends, with nothing in it but what a new server has. Tests of what is in
// a whole cluster so take turns with as many servers as run at a time; a new one takes seconds of computing. [Main] has their options
// and stops them. It requires [Servers].
func Lend(tb testing.TB) *Server {
	tb.Helper()
	netnstest.Require(tb, Servers)
	pool.mu.Lock()
	var s *Server
	if n := len(pool.free); n > 0 {
		s, pool.free = pool.free[n-1], pool.free[:n-1]
	}
	pool.mu.Unlock()
	if s == nil {
		dir, err := os.MkdirTemp("", "meshcni-kubetest")
		require.NoError(tb, err)
		if s, err = Start(dir, shared.options); err != nil {
			_ = os.RemoveAll(dir)
		}
		require.NoError(tb, err)
		a := s.Admin(tb)
		for _, path := range []string{"namespaces/default", "namespaces/kube-system", "namespaces/kube-public", "namespaces/kube-node-lease", "namespaces/default/services/kubernetes"} {
			require.Eventually(tb, func() bool { return a.Try(http.MethodGet, "/api/v1/"+path, nil, nil) == nil }, netnstest.Patience, 10*time.Millisecond, path)
		}
		s.own, err = s.keys()
		require.NoError(tb, err)
	}
	tb.Cleanup(func() {
		cleared := false
		defer func() {
			if !cleared {
				s.discard()
			}
		}()
		if tb.Failed() { // it may have left anything
			return
		}
		require.NoError(tb, s.clear(tb))
		cleared = true
		pool.mu.Lock()
		pool.free = append(pool.free, s)
		pool.mu.Unlock()
	})
	return s
}

// discard stops a server of [Lend] and removes its files.
func (s *Server) discard() {
	s.Stop()
	_ = os.RemoveAll(s.dir)
}

// etcdDo sends a request to etcd, whose keys and values are in base64 in JSON, as Go's []byte is.
func (s *Server) etcdDo(path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: patience}
	defer client.CloseIdleConnections()
	r, err := client.Post(s.etcdURL+"/v3/kv/"+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: %s: %s", path, r.Status)
	}
	return json.NewDecoder(r.Body).Decode(out)
}

// keys returns the keys of all objects.
func (s *Server) keys() (map[string]bool, error) {
	var answer struct {
		KVs []struct{ Key []byte } `json:"kvs"`
	}
	err := s.etcdDo("range", map[string]any{"key": []byte("/registry/"), "range_end": []byte("/registry0"), "keys_only": true}, &answer)
	all := map[string]bool{}
	for _, kv := range answer.KVs {
		all[string(kv.Key)] = true
	}
	return all, err
}

// clear removes the objects that a new server does not have. There are no controllers that would finish with a namespace or a finalizer,
// so it removes them from etcd, and waits until the API server has seen that.
func (s *Server) clear(tb testing.TB) error {
	a := s.Admin(tb)
	defer a.client.CloseIdleConnections()
	if err := s.removeAdded(); err != nil {
		return err
	}
	// The authorizer sees bindings in their order: once it knows of a later one, it has forgotten those.
	user := fmt.Sprint("kubetest-", time.Now().UnixNano())
	a.Do(tb, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &rbacv1.ClusterRoleBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding"}, ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-view"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}, nil)
	require.Eventually(tb, func() bool {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods"}}}
		a.Do(tb, http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", review, review)
		return review.Status.Allowed
	}, netnstest.Patience, 10*time.Millisecond, "the authorizer knows of %s", user)
	if err := s.removeAdded(); err != nil {
		return err
	}
	a.Do(tb, http.MethodGet, "/api/v1/pods", nil, nil) // a list is of now, so that what watches begin with is no older
	return nil
}

// removeAdded removes from etcd what a new server does not have.
func (s *Server) removeAdded() error {
	all, err := s.keys()
	if err != nil {
		return err
	}
	var removals []any
	for key := range all {
		if !s.own[key] {
			removals = append(removals, map[string]any{"request_delete_range": map[string]any{"key": []byte(key)}})
		}
	}
	for some := range slices.Chunk(removals, 100) { // etcd takes 128 at a time
		var answer struct{ Succeeded bool }
		if err := s.etcdDo("txn", map[string]any{"success": some}, &answer); err != nil {
			return err
		}
		if !answer.Succeeded {
			return fmt.Errorf("etcd: objects of a test were not removed")
		}
	}
	return nil
}
