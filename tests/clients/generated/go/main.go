// Uses the generated client as a program would: apply, deploy, approve, read, watch.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"chancery.example/walk/chancery"
)

const fleet = "default"

// must ends the program with the problem that the server has answered.
func must[T any](what string, answer *T, err error) *T {
	if err != nil {
		if failed, ok := err.(*chancery.GenericOpenAPIError); ok {
			fmt.Fprintln(os.Stderr, string(failed.Body()))
		}
		fmt.Fprintf(os.Stderr, "cannot %s: %v\n", what, err)
		os.Exit(1)
	}
	return answer
}

func until[T any](what string, ready func() *T) *T {
	for range 600 {
		if found := ready(); found != nil {
			return found
		}
		time.Sleep(100 * time.Millisecond)
	}
	fmt.Fprintf(os.Stderr, "still waiting: %s\n", what)
	os.Exit(1)
	return nil
}

func main() {
	configuration := chancery.NewConfiguration()
	configuration.Servers = chancery.ServerConfigurations{{URL: os.Args[1]}}
	client, ctx := chancery.NewAPIClient(configuration), context.Background()

	cluster := *chancery.NewClusterApplyBody(*chancery.NewClusterSpec(chancery.CLUSTERRUNTIME_SIMULATED))
	applied, _, err := client.ClustersAPI.ClusterApply(ctx, fleet, "go").ClusterApplyBody(cluster).Execute()
	must("apply the cluster", applied, err)

	resources := *chancery.NewResources()
	resources.SetCpu(4000)
	resources.SetMemory(8 << 30)
	node := *chancery.NewNodeApplyBody(*chancery.NewNodeSpec("d1", resources))
	node.SetCluster("go")
	apply := client.NodesAPI.NodeApply(ctx, fleet, "go-1").NodeApplyBody(node).IfNoneMatch("*")
	first, _, err := apply.Execute()
	must("apply the node", first, err)
	if _, response, err := apply.Execute(); err == nil || response.StatusCode != 412 {
		fmt.Fprintln(os.Stderr, "the node was created twice")
		os.Exit(1)
	}

	small := *chancery.NewResources()
	small.SetCpu(1000)
	spec := *chancery.NewPlanSpec("go", []chancery.Payload{*chancery.NewPayload("web", small)}, "go")
	spec.SetCluster("go")
	planned, _, err := client.PlansAPI.PlanApply(ctx, fleet, "go").PlanApplyBody(*chancery.NewPlanApplyBody(spec)).Execute()
	must("apply the plan", planned, err)

	version := *chancery.NewDeploymentSpec(1)
	version.SetCoordinates(map[string]map[string]string{"web": {"image": "web:1"}})
	create := *chancery.NewDeploymentCreateBody("one", version)
	deployed, _, err := client.DeploymentsAPI.DeploymentCreate(ctx, fleet, "go").DeploymentCreateBody(create).Execute()
	must("deploy", deployed, err)

	operation := until("an operation", func() *chancery.OperationRow {
		list := client.OperationsAPI.ListOperations(ctx, fleet).Plan("go").State("pending_approval,approved")
		page, _, err := list.Execute()
		if items := must("list operations", page, err).Items; len(items) > 0 {
			return &items[0]
		}
		return nil
	})
	approval := *chancery.NewApproveOne(operation.GetHash())
	approved, _, err := client.OperationsAPI.OperationApprove(ctx, fleet, operation.Id).ApproveOne(approval).Execute()
	must("approve", approved, err)
	until("the deployment", func() *chancery.DeploymentRow {
		row, _, err := client.DeploymentsAPI.GetDeployment(ctx, fleet, "go", "one").Execute()
		if must("read the deployment", row, err).State == chancery.DEPLOYMENTSTATUS_COMPLETED {
			return row
		}
		return nil
	})

	// The stream of new events of the deployment ends after two.
	watch := client.EventsAPI.Events(ctx, fleet).From(strconv.FormatInt(first.Position, 10))
	lines, _, err := watch.Subject("deployment/go/one").Follow(true).Limit(2).Execute()
	must("watch", &lines, err)
	if strings.Count(lines, `"partitionkey":"deployment/go/one"`) != 2 {
		fmt.Fprintln(os.Stderr, lines)
		os.Exit(1)
	}
	fmt.Println("go: applied, deployed, approved, read, watched")
}
