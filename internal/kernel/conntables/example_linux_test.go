package conntables_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/meshcni/meshcni/internal/kernel/conntables"
	"github.com/meshcni/meshcni/status"
)

// A pod whose processes are not in sight is counted, and the reading says why. Tables is a prometheus.Collector as well.
func ExampleTables_Read() {
	proc, err := os.MkdirTemp("", "proc")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(proc) }()
	dir := filepath.Join(proc, "sys/net/netfilter")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		panic(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "nf_conntrack_max"), []byte("262144\n"), 0o600); err != nil {
		panic(err)
	}
	cart := status.ID{Namespace: "shop", Name: "cart", UID: "5f1c2a90-6f52-4b53-9a7e-0d9b6f6a8c11"}
	tables := conntables.New(conntables.Options{ProcRoot: proc, Pods: func() []status.ID { return []status.ID{cart} }})
	r := tables.Read()
	fmt.Println(r.Limit, len(r.Tables), r.Unread, r.Err != nil)
	full := conntables.Table{Pod: cart, Entries: 250_000, Limit: r.Limit}
	fmt.Println(full.Percent() >= conntables.Nearly)
	// Output:
	// 262144 0 1 true
	// true
}
