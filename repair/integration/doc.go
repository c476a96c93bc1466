// Package integration has the tests of package repair against a real API server and etcd, with RBAC on, and against
// real processes in real network namespaces. There is nothing in it to import.
//
// setup.sh gets what they need; without it they are skipped, or fail where CI=true.
package integration
