// Package systemtest has the tests of ambient mode on the built programs: agent, plugin and a proxy, each a process of its own,
// with a real API server, the kernel and pods' network namespaces. There is no cluster and no runtime. There is nothing in it to
// import.
//
// The tests run in PID, mount and network namespaces of their own, which are the node: its process 1 is the test, and what the
// agent sets up on the host stays there.
package systemtest
