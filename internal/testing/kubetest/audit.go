package kubetest

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Call is a request in the server's audit log.
type Call struct {
	Verb      string `json:"verb"`
	AuditID   string `json:"auditID"`
	URI       string `json:"requestURI"`
	User      struct{ Username string }
	ObjectRef struct {
		Resource, Subresource, APIGroup, Namespace, Name string
	}
	ResponseStatus struct{ Code int }
	Received       time.Time `json:"requestReceivedTimestamp"`
}

// String returns, for example, "get pods", "create pods/eviction FORBIDDEN" or "watch leases.coordination.k8s.io".
func (c Call) String() string {
	what := c.Verb + " " + c.ObjectRef.Resource
	if c.ObjectRef.APIGroup != "" {
		what += "." + c.ObjectRef.APIGroup
	}
	if c.ObjectRef.Subresource != "" {
		what += "/" + c.ObjectRef.Subresource
	}
	if c.ResponseStatus.Code == http.StatusForbidden {
		what += " FORBIDDEN"
	}
	return what
}

// DryRun reports whether the request would have changed nothing.
func (c Call) DryRun() bool { return strings.Contains(c.URI, "dryRun=All") }

// Audit returns all requests so far, except those of group system:masters. A watch is one call.
func (s *Server) Audit(tb testing.TB) (calls []Call) {
	tb.Helper()
	f, err := os.Open(s.File("audit.log"))
	require.NoError(tb, err)
	defer func() { _ = f.Close() }()
	seen := map[string]bool{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c Call
		if json.Unmarshal(lines.Bytes(), &c) != nil || seen[c.AuditID] {
			continue // the last line may be incomplete; a watch has a line for its start and one for its end
		}
		seen[c.AuditID] = true
		calls = append(calls, c)
	}
	require.NoError(tb, lines.Err())
	return calls
}

// Calls counts a user's requests so far by [Call.String].
func (s *Server) Calls(tb testing.TB, user string) map[string]int {
	tb.Helper()
	got := map[string]int{}
	for _, c := range s.Audit(tb) {
		if c.User.Username == user {
			got[c.String()]++
		}
	}
	return got
}
